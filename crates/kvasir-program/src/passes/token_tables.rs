//! Validates the token-to-expert tables of a checkpoint (routing by token id).

use crate::ir::moe::Routing;
use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::weight::WeightId;

impl Program {
    /// Checks the token-to-expert tables, whose elements `values` returns. Each row must have `top_k`
    /// different experts.
    ///
    /// # Errors
    /// The name of the first invalid table and the reason.
    pub fn check_token_tables<'w>(
        &self,
        values: impl Fn(WeightId) -> &'w [f32],
    ) -> Result<(), (&str, String)> {
        for op in &self.ops {
            let Op::Route { scores, routing: Routing { token_table: Some(table), top_k, .. }, .. } = op
            else {
                continue;
            };
            let experts = self.value(*scores).width();
            for (token, row) in values(*table).chunks((*top_k).max(1)).enumerate() {
                let is_expert = |id: &f32| id.fract() == 0.0 && (0.0..experts as f32).contains(id);
                let why = match row.iter().enumerate().find(|(at, id)| row[..*at].contains(id)) {
                    Some((_, id)) => format!("maps token {token} to expert `{id}` twice"),
                    None => match row.iter().find(|id| !is_expert(id)) {
                        Some(id) => format!("maps token {token} to expert `{id}` of {experts}"),
                        None => continue,
                    },
                };
                return Err((&self.weight(self.resolve(*table)).name, why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Op, Program, Routing, WeightId};
    use crate::builder::source::Source;
    use crate::ir::moe::Score;
    use crate::ir::value::{Holds, Rows, Value, ValueId};
    use crate::model::Model;
    use serde_json::json;

    /// A program that routes to two of four experts by token id.
    fn program() -> Program {
        let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100,
            "max_position_embeddings": 128});
        let mut program = Model::build(&Source::of_config(config)).unwrap().target;
        let scores = ValueId(program.values.len() as u32);
        program.values.push(Value { holds: Holds::Numbers(4), rows: Rows::Tokens });
        let routing = Routing {
            score: Score::Softmax,
            top_k: 2,
            correction: None,
            groups: None,
            renormalize: None,
            scale: 1.0,
            token_table: Some(WeightId(0)),
            expert_scale: None,
        };
        program.ops.push(Op::Route { scores, routing, out: ValueId(0) });
        program
    }

    #[test]
    fn rows_must_have_distinct_existing_experts() {
        let program = program();
        let check = |table: &[f32]| program.check_token_tables(|_| table).map_err(|(_, why)| why);
        assert_eq!(check(&[0.0, 3.0, 2.0, 1.0]), Ok(()));
        for (table, why) in [
            ([0.0, 1.0, 3.0, 4.0], "maps token 1 to expert `4` of 4"),
            ([0.0, -1.0, 0.0, 1.0], "maps token 0 to expert `-1` of 4"),
            ([0.5, 1.0, 0.0, 1.0], "maps token 0 to expert `0.5` of 4"),
            ([0.0, 1.0, 2.0, 2.0], "maps token 1 to expert `2` twice"),
        ] {
            assert_eq!(check(&table), Err(why.to_owned()));
        }
    }
}
