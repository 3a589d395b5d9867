//! `kvasir tokenize`: turns texts from stdin into token ids.

use crate::io::failure::Failure;
use kvasir::ModelFiles;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file (vocabulary-only suffices), a directory in the Hugging Face layout, a tokenizer.json, or a hub name
    /// (`OWNER/NAME[@REVISION][:TAG]`); the built-in model unless given
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Add the tokenizer's special tokens
    #[arg(long)]
    add_special: bool,
    /// Read a JSON list of strings and print a list of id lists; without it, one text and one line of ids
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let model = self.model.as_deref().map_or(Ok(ModelFiles::BuiltIn), ModelFiles::locate)?;
        let tokenizer = model.text_files()?.tokenizer().map_err(Failure::failed)?;
        let encode = |text: &str| tokenizer.encode(text, self.add_special).map_err(Failure::failed);
        let input = Failure::read_stdin()?;
        if self.json {
            let texts: Vec<String> = serde_json::from_str(&input)
                .map_err(|e| Failure::usage(format!("stdin is no JSON list of strings: {e}")))?;
            let ids = texts.iter().map(|text| encode(text)).collect::<Result<Vec<_>, _>>()?;
            println!("{}", serde_json::json!(ids));
        } else {
            let ids: Vec<String> = encode(&input)?.iter().map(u32::to_string).collect();
            println!("{}", ids.join(" "));
        }
        Ok(ExitCode::SUCCESS)
    }
}
