//! Commands of Ollama, llama.cpp and vLLM, and lines that begin without a command.

use kvasir::{HubName, ModelFiles, ShortNames};
use std::path::Path;

/// Per command of another engine: its names, and what to type instead; `MODEL` stands for the first argument.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["show", "info"], "kvasir inspect MODEL shows a model"),
    (&["rm", "remove", "delete"], "kvasir models --json prints the path of each model; delete it there"),
    (
        &["stop", "kill"],
        "a server ends with Ctrl-C or SIGTERM, a chat with /quit; neither keeps a model loaded",
    ),
    (
        &["create"],
        "there are no Modelfiles: kvasir chat takes --system and --temperature, kvasir convert IN OUT --dtype TYPE quantizes",
    ),
    (&["cp", "copy", "push"], "models are files: copy them, and name them by their path"),
    (&["login", "signin", "signout", "logout", "auth"], "the variable HF_TOKEN holds the hub's token"),
    (
        &["server", "start", "api", "launch_server", "api_server", "llama-server"],
        "kvasir serve MODEL serves over HTTP",
    ),
    (&["cli", "talk", "repl", "llama-cli"], "kvasir chat MODEL chats in the terminal"),
    (&["run-batch"], "kvasir serve serves a model; send it the requests, which it runs in batches"),
    (&["collect-env"], "kvasir doctor describes the machine"),
    (&["ask", "prompt"], "kvasir run MODEL TEXT answers a question"),
    (&["complete", "completion"], "kvasir generate MODEL --prompt TEXT completes a text"),
    (&["quantize", "quantise"], "kvasir convert MODEL OUT --dtype q4_k_m quantizes a model"),
    (&["download", "fetch", "get", "install"], "kvasir pull MODEL fetches a model from the hub"),
    (
        &["search"],
        "https://huggingface.co/models?library=gguf lists models; kvasir pull OWNER/NAME-GGUF:TYPE fetches one",
    ),
    (&["launch"], "kvasir serve serves a model; then point the agent to http://127.0.0.1:8000"),
    (&["embed", "embedding", "embeddings"], "kvasir serve MODEL answers /v1/embeddings"),
    (&["benchmark", "llama-bench"], "kvasir bench pp MODEL and kvasir bench tg MODEL measure speed"),
    (&["perplexity", "llama-perplexity"], "kvasir bench fidelity MODEL measures perplexity on a text"),
    (&["imatrix"], "kvasir convert IN OUT --dtype q4_k_m quantizes without an importance matrix"),
    (&["gguf-split"], "split files are read as they are: name the first part"),
    (&["rpc-server"], "kvasir serve --dp N --tp M runs processes on one machine only"),
    (&["version"], "kvasir --version"),
    (&["update", "upgrade"], "install a new release; kvasir --version prints this one's"),
];

/// Error for `name`, which is not a command, with what to type instead; `None` without a hint.
pub(crate) fn answer(name: &str, rest: &[String]) -> Option<String> {
    if let Some((_, instead)) = COMMANDS.iter().find(|(names, _)| names.contains(&name)) {
        let model = rest.iter().find(|word| !word.starts_with('-'));
        let instead =
            model.map_or_else(|| (*instead).to_owned(), |model| instead.replace("MODEL", &quoted(model)));
        return Some(format!("there is no command `{name}`; {instead}"));
    }
    if name.contains(char::is_whitespace) {
        return Some(format!(
            "`{name}` is not a command; to send it to the built-in model: kvasir run {}",
            quoted(name)
        ));
    }
    let is_model = HubName::named(name).is_some() || ModelFiles::is_named(Path::new(name));
    if is_model {
        return Some(format!(
            "`{name}` is no command; to chat with that model: kvasir run {}",
            line(name, rest)
        ));
    }
    let nearest = ShortNames::nearest(name)?;
    Some(format!("`{name}` is neither a command nor a known model; similar: `{nearest}`"))
}

/// What to type instead of a line that begins with an option of another command.
pub(crate) fn without_command(words: &[String]) -> Option<String> {
    let words = words.get(1..)?;
    if words == ["-v"] {
        return Some("kvasir --version prints the version".to_owned());
    }
    let models = ["-m", "--model", "--model-path", "-hf", "--hf-repo"];
    let at = words.iter().position(|word| models.contains(&word.as_str()))?;
    let model = words.get(at + 1).map_or("MODEL", String::as_str);
    let given =
        |names: &[&str]| words.iter().any(|word| names.contains(&word.split('=').next().unwrap_or(word)));
    let command =
        if given(&["--port", "--host", "-np", "--parallel", "--api-key", "-a", "--alias", "--metrics"]) {
            "serve"
        } else if given(&["-no-cnv", "--no-conversation"]) {
            "generate"
        } else {
            "chat"
        };
    let modes = ["-cnv", "--conversation", "-no-cnv", "--no-conversation"];
    let rest = words.iter().take(at).chain(words.iter().skip(at + 2));
    let rest: Vec<String> = rest.filter(|word| !modes.contains(&word.as_str())).cloned().collect();
    Some(format!("name a command first: kvasir {command} {}", line(model, &rest)))
}

/// Words as typed in a shell.
fn line(first: &str, rest: &[String]) -> String {
    let words: Vec<String> =
        std::iter::once(first).chain(rest.iter().map(String::as_str)).map(quoted).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn foreign_commands_are_answered_with_ours() {
        for (name, rest, part) in [
            ("show", "llama3.2", "kvasir inspect llama3.2"),
            ("show", "--verbose", "kvasir inspect MODEL"),
            ("server", "my file.gguf", "kvasir serve my"),
            ("llama-server", "-m f.gguf", "kvasir serve f.gguf"),
            ("launch", "claude", "kvasir serve serves"),
            ("create", "mario -f Modelfile", "kvasir convert IN OUT"),
            ("collect-env", "-x", "kvasir doctor"),
            ("perplexity", "-m f.gguf -f x.txt", "kvasir bench fidelity f.gguf"),
            ("gguf-split", "f.gguf", "name the first part"),
            ("rpc-server", "-p", "--dp N"),
            ("llama3.2", "hi", "kvasir run llama3.2 hi"),
            ("mistrall", "hi", "similar: `mistral`"),
            ("a/b:Q8_0", "-x", "kvasir run a/b:Q8_0 -x"),
            ("What's 2+2?", "-x", "kvasir run"),
        ] {
            let rest = words(rest);
            assert!(name.contains(' ') || answer(name, &rest).unwrap().contains(part), "{name} {rest:?}");
        }
        assert!(answer("what is it's name", &[]).unwrap().ends_with(r"kvasir run 'what is it'\''s name'"));
        assert_eq!(answer("servee", &[]), None, "left to the suggestion of a similar command");
    }

    #[test]
    fn lines_without_a_command_get_one() {
        for (line, instead) in [
            ("kvasir -m f.gguf -p hi -n 64", "kvasir chat f.gguf -p hi -n 64"),
            ("kvasir --port 8080 -m f.gguf", "kvasir serve f.gguf --port 8080"),
            ("kvasir -hf a/b -no-cnv -p hi", "kvasir generate a/b -p hi"),
            ("kvasir -m", "kvasir chat MODEL"),
        ] {
            assert_eq!(
                without_command(&words(line)),
                Some(format!("name a command first: {instead}")),
                "{line}"
            );
        }
        assert!(without_command(&words("kvasir -v")).unwrap().contains("kvasir --version"));
        for line in ["kvasir", "kvasir --help", "kvasir -x"] {
            assert_eq!(without_command(&words(line)), None, "{line}");
        }
    }
}
