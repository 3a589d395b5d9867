//! Lowering pass: computes only the rows whose logits are wanted, from the last attention on.
//!
//! In prefill only the last token of a prompt needs logits. This pass hoists the `Gather` op above
//! every row-wise op whose result leads only to the logits. Mostly those are the last layer's
//! output projection and feed-forward block.
//!
//! Invariant: remaining rows have the same bits, because each row is computed by itself. Values in
//! `keep` (taps) stay whole. Guarded by the tests of this module.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::value::{Rows, ValueId};

impl Program {
    /// The program with its `Gather` moved up, so that ops which only lead to logits run on the
    /// sampled rows.
    ///
    /// Values in `keep` stay whole. Each row is computed by itself, so the remaining rows have the
    /// same bits.
    pub fn sampled_early(&self, keep: &[ValueId]) -> Self {
        let mut program = self.clone();
        let Some(at) = self.ops.iter().position(|op| matches!(op, Op::Gather { .. })) else { return program };
        let late = self.only_for(at, keep);
        let is_late = |value: ValueId| late.iter().any(|op| self.ops[*op].out() == value);
        let mut ops = Vec::with_capacity(self.ops.len() + 2);
        let mut gathered: Vec<(ValueId, ValueId)> = Vec::new();
        for (number, op) in self.ops.iter().enumerate() {
            let mut op = op.clone();
            if late.contains(&number) {
                program.values[op.out().0 as usize].rows = Rows::Sampled;
                for x in self.ops[number].inputs().filter(|x| !is_late(*x)) {
                    if !gathered.iter().any(|(of, _)| *of == x) {
                        let out = ValueId(program.values.len() as u32);
                        program.values.push(crate::ir::value::Value { rows: Rows::Sampled, ..self.value(x) });
                        ops.push(Op::Gather { x, out });
                        gathered.push((x, out));
                    }
                }
                op.replace(|x| gathered.iter().find(|(of, _)| *of == x).map_or(x, |(_, out)| *out));
            }
            match op {
                // The operand of the original `Gather` has sampled rows only by now: its readers
                // take the operand directly.
                Op::Gather { x, out } if number == at && !late.is_empty() => gathered.push((out, x)),
                mut op => {
                    if number > at {
                        op.replace(|v| gathered.iter().find(|(of, _)| *of == v).map_or(v, |(_, x)| *x));
                    }
                    ops.push(op);
                }
            }
        }
        program.ops = ops;
        program
    }

    /// The ops before op `gather` that are row-wise, do not depend on the position, and lead only
    /// to `gather`.
    fn only_for(&self, gather: usize, keep: &[ValueId]) -> Vec<usize> {
        let mut late: Vec<usize> = Vec::new();
        for (number, op) in self.ops.iter().enumerate().take(gather).rev() {
            let out = op.out();
            let mut takers = (number + 1..self.ops.len()).filter(|n| self.ops[*n].inputs().any(|v| v == out));
            if op.is_row_wise() && !keep.contains(&out) && takers.all(|n| n == gather || late.contains(&n)) {
                late.push(number);
            }
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::source::Source;
    use crate::ir::program::Tap;
    use crate::model::Model;
    use serde_json::json;

    fn program() -> Program {
        let config = json!({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true});
        Model::build(&Source::of_config(config)).unwrap().target
    }

    #[test]
    fn ops_behind_the_last_attention_run_for_sampled_rows_only() {
        let whole = program();
        let early = whole.sampled_early(&[]);
        let last =
            |p: &Program| p.ops.iter().rposition(|op| matches!(op, Op::UpdateAndAttend { .. })).unwrap();
        assert_eq!(last(&whole), last(&early));
        for (number, op) in early.ops.iter().enumerate() {
            let rows = early.value(op.out()).rows;
            assert_eq!(rows == Rows::Sampled, number > last(&early), "{op:?}");
            let taken = op.inputs().map(|v| early.value(v).rows);
            let gather = matches!(op, Op::Gather { .. });
            assert!(taken.into_iter().all(|taken| gather || taken == rows), "{op:?}");
        }
        let gathers = |p: &Program| p.ops.iter().filter(|op| matches!(op, Op::Gather { .. })).count();
        assert_eq!((gathers(&whole), gathers(&early)), (1, 2), "attention's result and the residual stream");
        assert_eq!(early.ops.len(), whole.ops.len() + 1);
    }

    #[test]
    fn tapped_values_keep_all_rows() {
        let whole = program();
        let tap = whole.tap(Tap::FinalNorm).unwrap();
        assert_eq!(whole.sampled_early(&[tap]), whole);
        let tap = whole.tap(Tap::OutOfLastLayer).unwrap();
        let early = whole.sampled_early(&[tap]);
        assert_eq!(early.value(tap).rows, Rows::Tokens);
        assert_eq!(early.ops.len(), whole.ops.len());
        assert!(early.ops.iter().any(|op| matches!(op, Op::Gather { x, .. } if *x == tap)));
    }
}
