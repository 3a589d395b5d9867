//! Structured output options of `kvasir generate`: JSON schema, regular expression, grammar.

use crate::io::failure::Failure;
use kvasir::{Error, Model, Shape};
use kvasir_sample::Constrained;
use std::{fs, path::Path, path::PathBuf};

/// A form that the answer must have.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct FormArgs {
    /// Constrain the answer to the JSON schema in this file
    #[arg(long, value_name = "FILE", conflicts_with = "ignore_eos")]
    json_schema: Option<PathBuf>,
    /// Constrain the answer to this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "ignore_eos")]
    regex: Option<String>,
    /// Constrain the answer to the grammar in this file: Lark, or EBNF with `::=`
    #[arg(long, value_name = "FILE", conflicts_with = "ignore_eos")]
    grammar: Option<PathBuf>,
}

impl FormArgs {
    /// Compiles the requested constraint for this model.
    pub(crate) fn constraint(&self, model: &Model) -> Result<Constrained, Failure> {
        let (option, shape) = match (&self.json_schema, &self.regex, &self.grammar) {
            (Some(file), _, _) => {
                let schema = serde_json::from_str(&read("--json-schema", file)?);
                let schema =
                    schema.map_err(|e| Failure::usage(format!("--json-schema: {}: {e}", file.display())))?;
                ("--json-schema", Shape::JsonSchema(schema))
            }
            (_, Some(pattern), _) => ("--regex", Shape::Regex(pattern.clone())),
            (_, _, Some(file)) => ("--grammar", Shape::Grammar(read("--grammar", file)?)),
            (None, None, None) => return Ok(Constrained::default()),
        };
        let refused = |why: &dyn std::fmt::Display| Failure::usage(format!("{option}: {why}"));
        if model.loaded.backend() == "sim" {
            return Err(refused(
                &"the simulated device outputs arbitrary tokens; another --backend keeps it",
            ));
        }
        if model.tokenizer.is_none() {
            return Err(refused(&"the model has no tokenizer.json, so its tokens have no text"));
        }
        model.constraint(&shape).map_err(|error| match error {
            Error::InvalidArgument { reason, .. } => refused(&reason),
            error => refused(&error),
        })
    }
}

fn read(option: &str, file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|e| Failure::usage(format!("{option}: {}: {e}", file.display())))
}
