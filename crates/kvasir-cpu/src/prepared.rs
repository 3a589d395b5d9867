use crate::dense::{Bf16Activations, Taken, matmul_bf16, matmul_f32};
use crate::first::First;
use crate::matmul::Output;
use crate::parts::{by_caller, by_rows};
#[cfg(target_arch = "x86_64")]
use crate::quant::Gated;
use crate::quant::{QuantActivations, matmul as matmul_quant};
use crate::weights::{Linear, Packed};
use crate::{Level, Team};
use kvasir_program::{Activation, ValueId};
use std::cell::RefCell;
use std::io;

/// Rows that a matrix is multiplied with.
pub(crate) enum Operand<'a> {
    /// Stored, so many numbers apart.
    Rows(&'a [f32], usize),
    /// Made when they are taken.
    Made(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
}

impl Operand<'_> {
    /// Hands row `row` of `width` numbers to `take`.
    fn with(&self, row: usize, width: usize, take: impl FnOnce(&[f32])) {
        thread_local! {
            static MADE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        match self {
            Self::Rows(x, stride) => take(&x[row * stride..row * stride + width]),
            Self::Made(make) => MADE.with_borrow_mut(|made| {
                // Room stays as large as the widest row wanted it: what it gains is written twice.
                if made.len() < width {
                    made.resize(width, 0.0);
                }
                make(row, &mut made[..width]);
                take(&made[..width]);
            }),
        }
    }
}

/// Makes one row integers.
fn integers<'a>(
    level: Level,
    inputs: usize,
    x: &'a Operand<'_>,
    quant: &'a QuantActivations,
) -> impl Fn(usize) + Sync + 'a {
    // SAFETY: each row is written by one thread, and there is room for all that are made.
    move |row| x.with(row, inputs, |x| unsafe { quant.write_row(level, row, x) })
}

/// Whether `of` is another operand than the one whose rows were made last, or has no name; its rows are from now on.
fn is_new(last: &mut Option<ValueId>, of: Option<ValueId>) -> bool {
    std::mem::replace(last, of) != of || of.is_none()
}

/// What `make` makes of so many rows, if they are wanted: few are made by one thread when the others are called, many by all of them now, for who is called
/// calls nobody.
fn before<'a>(wanted: bool, n: usize, make: &'a (dyn Fn() + Sync)) -> First<'a> {
    match wanted {
        true if by_caller(n) => First::of(make),
        true => {
            make();
            First::nothing()
        }
        false => First::nothing(),
    }
}

/// Rows of activations in the forms that kernels take, made once for all matrices that share an operand.
pub(crate) struct Prepared {
    quant: QuantActivations,
    /// What a gate and its partner yield, while `quant` is what they take.
    gated: QuantActivations,
    bf16: Bf16Activations,
    quant_of: Option<ValueId>,
    bf16_of: Option<ValueId>,
}

impl Prepared {
    /// Room for so many rows; floats are taken so many times.
    pub(crate) fn new(rows: usize, inputs: usize, taken: Taken) -> io::Result<Self> {
        let quant = || QuantActivations::new(rows, inputs);
        let bf16 = Bf16Activations::new(rows, inputs, taken)?;
        Ok(Self { quant: quant()?, gated: quant()?, bf16, quant_of: None, bf16_of: None })
    }

    /// What was prepared is of no use any more.
    pub(crate) fn forget(&mut self) {
        (self.quant_of, self.bf16_of) = (None, None);
    }

    /// Whether `n` rows of `of` are still to become integers, for which there is room then.
    fn begin_quant(&mut self, inputs: usize, of: Option<ValueId>, n: usize) -> bool {
        let wanted = is_new(&mut self.quant_of, of);
        if wanted {
            self.quant.reshape(inputs, n);
        }
        wanted
    }

    /// Prepares `out`, the activation of a gate and its partner, for matrices that take it; nothing else of it is kept. False if that does not pay
    /// for so many rows.
    pub(crate) fn gate(
        &mut self,
        all: (&Team, Level),
        (gate, up, activation): (&Linear, &Linear, Activation),
        (of, x): (ValueId, Operand<'_>),
        n: usize,
        out: ValueId,
    ) -> bool {
        let (Packed::Quant(w), Packed::Quant(partner)) = (&gate.packed, &up.packed) else { return false };
        #[cfg(target_arch = "x86_64")]
        {
            let gated = Gated { gate: w, up: partner, activation };
            if gated.takes(all.1, n) {
                if self.begin_quant(gate.inputs, Some(of), n) {
                    by_rows(all.0, n, &integers(all.1, gate.inputs, &x, &self.quant));
                }
                self.gated.reshape(gate.outputs, n);
                gated.multiply(all.0, all.1, &self.quant, n, &self.gated);
                std::mem::swap(&mut self.quant, &mut self.gated);
                self.quant_of = Some(out);
                return true;
            }
        }
        // Other architectures have no way for both.
        let _ = (all, w, partner, activation, of, x, n, out);
        false
    }

    /// `out = l · x + bias`, for those matrices that there are, which take the same rows. `of` names the operand, so that the next matrix need not prepare it again.
    pub(crate) fn multiply(
        &mut self,
        units: (&Team, Level),
        wanted: &mut [Option<(&Linear, Output<'_>)>],
        of: Option<ValueId>,
        x: &Operand<'_>,
    ) {
        let form = |wanted: &Option<(&Linear, _)>| wanted.as_ref().map(|(l, _)| l.packed.form());
        for wanted in wanted.chunk_by_mut(|a, b| form(a) == form(b)) {
            self.multiply_alike(units, wanted, of, x);
            for (l, out) in wanted.iter_mut().flatten() {
                if let Some(bias) = &l.bias {
                    out.add(bias);
                }
            }
        }
    }

    /// The products of matrices of one form.
    fn multiply_alike(
        &mut self,
        (team, level): (&Team, Level),
        wanted: &mut [Option<(&Linear, Output<'_>)>],
        of: Option<ValueId>,
        x: &Operand<'_>,
    ) {
        let Some(Some((first, out))) = wanted.first() else { return };
        let (inputs, n) = (first.inputs, out.rows());
        match &first.packed {
            Packed::Quant(_) => {
                let wanted_rows = self.begin_quant(inputs, of, n);
                let quant = &self.quant;
                let matrices = wanted.iter_mut().flatten().filter_map(|(l, out)| match &l.packed {
                    Packed::Quant(w) => Some((w, out)),
                    _ => None,
                });
                let make = || by_rows(team, n, &integers(level, inputs, x, quant));
                matmul_quant(team, level, matrices, quant, &before(wanted_rows, n, &make));
            }
            Packed::Bf16(_) => {
                let wanted_rows = is_new(&mut self.bf16_of, of);
                if wanted_rows {
                    self.bf16.reshape(inputs, n);
                }
                let bf16 = &self.bf16;
                let make = || {
                    by_rows(team, n, &|row| {
                        // SAFETY: each row is written by one thread, and there is room for so many.
                        x.with(row, inputs, |x| unsafe { bf16.write_row(level, row, x) });
                    });
                };
                let first = before(wanted_rows, n, &make);
                for (l, out) in wanted.iter_mut().flatten() {
                    if let Packed::Bf16(w) = &l.packed {
                        matmul_bf16(team, level, w, bf16, out, &first);
                    }
                }
            }
            Packed::F32(_) => {
                let Operand::Rows(x, stride) = x else {
                    unreachable!("rows are made only for matrices that take them in another form")
                };
                for (l, out) in wanted.iter_mut().flatten() {
                    if let Packed::F32(w) = &l.packed {
                        matmul_f32(team, level, w, (x, *stride), out);
                    }
                }
            }
        }
    }
}
