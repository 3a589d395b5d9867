//! `kvasir template`: renders a chat template over conversations from stdin.

use crate::io::failure::Failure;
use kvasir::ModelFiles;
use kvasir_template::{ChatTemplate, TemplateError};
use serde_json::{Map, Value, json};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model whose chat template is rendered: a path or a hub name (`OWNER/NAME[@REVISION][:TAG]`); the built-in model
    /// unless given
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Render the template in this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    template: Option<PathBuf>,
    /// Read a JSON list of objects (`messages`, `tools`, `add_generation_prompt`, `bos_token`, `eos_token`, …) and
    /// print a list of `{"text"}` or `{"error"}`; without it, one object and its text
    #[arg(long)]
    json: bool,
}

type Compiled = Result<ChatTemplate, TemplateError>;

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let (template, defaults) = self.load()?;
        let input = Failure::read_stdin()?;
        let bad = |e| Failure::usage(format!("stdin is not the JSON that template takes: {e}"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let render = |given: &Map<String, Value>| {
            let mut variables = defaults.clone();
            variables.extend(given.clone());
            match &template {
                Ok(template) => template.render(&variables, i64::try_from(now).unwrap_or(i64::MAX)),
                Err(error) => Err(error.clone()),
            }
        };
        if !self.json {
            let given: Map<String, Value> = serde_json::from_str(&input).map_err(bad)?;
            print!("{}", render(&given).map_err(Failure::failed)?);
            return Ok(ExitCode::SUCCESS);
        }
        let all: Vec<Map<String, Value>> = serde_json::from_str(&input).map_err(bad)?;
        let rendered = all.iter().map(|given| match render(given) {
            Ok(text) => json!({ "text": text }),
            Err(error) => json!({ "error": error.to_string() }),
        });
        println!("{}", rendered.collect::<Value>());
        Ok(ExitCode::SUCCESS)
    }

    /// The template (or its compile error), and default variables.
    fn load(&self) -> Result<(Compiled, Map<String, Value>), Failure> {
        let (source, mut variables) = match (&self.template, &self.model) {
            (Some(file), _) => (Failure::read_option("--template", file)?, Map::new()),
            (None, model) => {
                let files = model.as_deref().map_or(Ok(ModelFiles::BuiltIn), ModelFiles::locate)?;
                let files = files.text_files()?;
                let source = files.template_source(None).map_err(Failure::failed)?;
                let name = model.as_deref().unwrap_or(Path::new(kvasir::BUILT_IN)).display();
                let source =
                    source.ok_or_else(|| Failure::failed(format!("{name}: has no chat template")))?;
                (source, files.template_variables())
            }
        };
        variables.insert("tools".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), Value::Bool(false));
        Ok((ChatTemplate::new(&source), variables))
    }
}
