//! Fits a step to its executor and restores it afterwards: padding to static shapes, then explicit
//! masks where the executor takes no other plan.
//!
//! The engine sees its own batch and plan again, and an output without entries of dummy rows.

use crate::batch::Batch;
use crate::executor::{Abilities, Step, StepError};
use crate::padding::Padding;
use kvasir_kv::{Lowering, Plan};

/// Rewrites steps for one executor.
#[derive(Debug, Default)]
pub struct Fitting {
    padding: Padding,
    lowering: Lowering,
}

/// What a fitted step held before; see [`Original::restore`].
#[derive(Debug, Default)]
pub struct Original {
    batch: Option<Box<Batch>>,
    plan: Option<Box<Plan>>,
}

impl Fitting {
    /// Pads steps by `padding`.
    pub fn new(padding: Padding) -> Self {
        Self { padding, lowering: Lowering::default() }
    }

    /// Rewrites a step for an executor of these abilities. On an error the step is unchanged.
    pub fn fit(&mut self, step: &mut Step, abilities: &Abilities) -> Result<Original, StepError> {
        let mut original = Original::default();
        if let Some((batch, plan)) = self.padding.pad(step) {
            original.batch = Some(Box::new(std::mem::replace(&mut step.batch, batch)));
            original.plan = Some(Box::new(std::mem::replace(&mut step.plan, plan)));
        }
        match step.lower(abilities, &mut self.lowering) {
            Ok(padded) => {
                original.plan = original.plan.or(padded);
                Ok(original)
            }
            Err(error) => {
                original.restore(step);
                Err(error)
            }
        }
    }
}

impl Original {
    /// Puts the batch and the plan back, and drops the outputs of dummy rows.
    pub fn restore(self, step: &mut Step) {
        if let Some(batch) = self.batch {
            let padded = std::mem::replace(&mut step.batch, *batch);
            step.output.drop_dummies(&padded.rows);
        }
        if let Some(plan) = self.plan {
            step.plan = *plan;
        }
    }
}
