//! `kvasir ps`: the models that a running server has loaded, of Kvasir's or Ollama's `/api/ps`.

use crate::io::failure::Failure;
use kvasir_bench::load::{self, Address, Route, Target, TrustedRoots};
use serde_json::{Map, Value};
use std::{env, io::ErrorKind, process::ExitCode, time::Duration};

/// Time in which the server must answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Ps {
    /// URL of the server [default: that of OLLAMA_HOST, else http://127.0.0.1:8000]
    #[arg(value_name = "URL", value_parser = Address::parse)]
    address: Option<Address>,
    /// API key
    #[arg(long, env = "KVASIR_API_KEY", hide_env_values = true, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Ps {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let variable = env::var("OLLAMA_HOST").ok().filter(|host| !host.trim().is_empty());
        let default =
            || variable.as_deref().map_or_else(|| Address::parse("http://127.0.0.1:8000"), parse_ollama_host);
        let address = self.address.map_or_else(default, Ok);
        let address = address.map_err(|why| Failure::usage(format!("OLLAMA_HOST: {why}")))?;
        let url = address.url();
        let roots = address.secure.then(|| TrustedRoots::of(None)).transpose().map_err(Failure::usage)?;
        let (key, extra) = (self.api_key.into_iter().next(), Map::new());
        let target = Target { address, roots, route: Route::Chat, model: None, key, extra };
        let (status, body) = load::get(target, "/api/ps", PATIENCE).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => Failure::failed(format!(
                "no server runs at {url}; start one with kvasir serve MODEL, or name another: kvasir ps URL"
            )),
            _ => Failure::failed(format!("{url}: {error}")),
        })?;
        let list: Option<Value> = serde_json::from_slice(&body).ok();
        let list = match (status, list.as_ref().and_then(|list| list["models"].as_array())) {
            (200, Some(list)) => list,
            (401 | 403, _) => {
                return Err(Failure::failed(format!("{url} requires an API key: pass --api-key KEY")));
            }
            _ => {
                return Err(Failure::failed(format!(
                    "{url} has no /api/ps (status {status}); servers of Kvasir and Ollama have it"
                )));
            }
        };
        if self.json {
            println!("{}", Value::from(list.clone()));
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("kvasir: {url} serves");
        list.iter().for_each(|model| println!("{}", line(model)));
        Ok(ExitCode::SUCCESS)
    }
}

/// Parses the value of `OLLAMA_HOST`. Scheme and port are optional; a wildcard address means this
/// machine.
fn parse_ollama_host(text: &str) -> Result<Address, String> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").map_or(("http", text), |(scheme, rest)| (scheme, rest));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, port) =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).unwrap_or((host, "11434"));
    let name = if ["", "0.0.0.0", "[::]"].contains(&name) { "127.0.0.1" } else { name };
    Address::parse(&format!("{scheme}://{name}:{port}/{path}"))
}

/// A loaded model on one line: name, size, number of weights, type, context.
fn line(model: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let size = model["size"].as_f64().map_or_else(String::new, |bytes| match bytes {
        n if n >= 1e9 => format!("{:.1} GB", n / 1e9),
        n => format!("{:.0} MB", n / 1e6),
    });
    let context = model["context_length"].as_u64().map_or_else(String::new, |n| format!("{n} tokens"));
    let details = &model["details"];
    let parts = [
        text(&model["name"]),
        size,
        text(&details["parameter_size"]),
        text(&details["quantization_level"]),
        context,
    ];
    parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_variable_of_ollama_is_read_as_ollama_does() {
        let url = |text: &str| parse_ollama_host(text).map(|address| address.url());
        for (text, wanted) in [
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            (":8080", "http://127.0.0.1:8080"),
            ("http://box:1234/", "http://box:1234"),
        ] {
            assert_eq!(url(text).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn a_model_is_one_line() {
        let model = json!({"name": "m", "size": 5_500_000_000_u64, "context_length": 4096,
            "details": {"parameter_size": "8B", "quantization_level": "Q4_K_M"}});
        assert_eq!(line(&model), "m  5.5 GB  8B  Q4_K_M  4096 tokens");
        assert_eq!(line(&json!({"name": "m"})), "m");
    }
}
