//! `kvasir models`: lists the models on this machine, the built-in one last; `kvasir pull`: fetches one from the hub.

use crate::io::failure::Failure;
use crate::options::hub_fetch::hub_name;
use kvasir::{CachedModel, ModelCard, OpenedModel};
use serde_json::{Value as Json, json};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Models {
    /// List this folder's models, too: GGUF files, and folders with a config.json
    #[arg(long, env = "KVASIR_MODELS_DIR", value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Name, path unless it is built in, and card of a model, or why it cannot be opened.
type Listed = (String, Option<PathBuf>, Result<ModelCard, String>);

#[derive(clap::Args)]
pub(crate) struct Pull {
    /// Hub name, `OWNER/NAME[@REVISION][:TAG]`, or a short one, such as `llama3.2:1b`
    #[arg(value_name = "NAME")]
    name: String,
}

impl Models {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut models = CachedModel::of_hub()?;
        if let Some(folder) = &self.models_dir {
            models.extend(CachedModel::of_folder(folder)?);
        }
        let described = models.into_iter().map(|model| {
            let card = if model.is_partial {
                Err("not all of it is here; `kvasir pull` fetches the rest".to_owned())
            } else {
                OpenedModel::open(&model.path).map(|opened| ModelCard::of(&opened)).map_err(|e| e.to_string())
            };
            (model.name, Some(model.path), card)
        });
        let mut described: Vec<Listed> = described.collect();
        if described.is_empty() {
            eprintln!("kvasir: only the built-in model is here; `kvasir pull OWNER/NAME` fetches another");
        }
        described.push((kvasir::BUILT_IN.into(), None, Ok(ModelCard::of(&OpenedModel::built_in()?))));
        if self.json {
            let list = described.iter().map(|(name, path, card)| match card {
                Ok(card) => json!({"name": name, "path": path, "model": card}),
                Err(why) => json!({"name": name, "path": path, "error": why}),
            });
            println!("{}", list.collect::<Json>());
            return Ok(ExitCode::SUCCESS);
        }
        let rows: Vec<[String; 5]> = described.iter().map(|(name, _, card)| row(name, card)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..4).map(width).collect();
        for [name, size, weights, dtype, context] in rows {
            let line = format!(
                "{name:<0$}  {size:>1$}  {weights:>2$}  {dtype:<3$}  {context}",
                widths[0], widths[1], widths[2], widths[3]
            );
            println!("{}", line.trim_end());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Name, size, number of weights, type and context, or why it cannot be opened.
fn row(name: &str, card: &Result<ModelCard, String>) -> [String; 5] {
    let name = name.to_owned();
    let none = String::new;
    match card {
        Ok(card) => {
            let size = match card.bytes as f64 {
                n if n >= 1e9 => format!("{:.1} GB", n / 1e9),
                n => format!("{:.0} MB", n / 1e6),
            };
            let weights = match card.parameters as f64 {
                n if n >= 1e9 => format!("{:.1}B", n / 1e9),
                n if n >= 1e7 => format!("{:.0}M", n / 1e6),
                n => format!("{:.1}M", n / 1e6),
            };
            [name, size, weights, card.quantization.clone(), format!("{} tokens", card.context)]
        }
        Err(why) => [name, none(), none(), none(), why.clone()],
    }
}

impl Pull {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let name = hub_name(&self.name).map_err(Failure::usage)?;
        let path = name.find()?;
        let card = ModelCard::of(&OpenedModel::open(&path)?);
        let [_, size, weights, dtype, context] = row("", &Ok(card));
        eprintln!("kvasir: {name} is here: {size}, {weights} weights, {dtype}, {context}");
        println!("{}", path.display());
        Ok(ExitCode::SUCCESS)
    }
}
