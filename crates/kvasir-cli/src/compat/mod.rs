//! Translates commands and options of Ollama, llama.cpp and vLLM to Kvasir's. For one without an
//! equivalent, the error says what to type instead.
//!
//! The arguments are rewritten before they are parsed. No option value begins with a dash, except
//! numbers, so before a `--` every other word that begins with a dash is an option.

pub(crate) mod commands;
pub(crate) mod options;

use crate::compat::commands::{answer, without_command};
use crate::compat::options::{Meaning, OPTIONS};
use crate::io::failure::Failure;
use clap::{ArgAction, Command};
use std::{ffi::OsString, path::Path};

/// Rewrites arguments, the program's name first; fails with what to type instead.
pub(crate) fn translate(definition: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    // Other encodings are left to the parser.
    let Some(words) = args.iter().map(|arg| arg.to_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    else {
        return Ok(args);
    };
    let Some(at) = command_at(definition, &words) else {
        return match without_command(&words) {
            Some(why) => Err(Failure::usage(why)),
            None => Ok(args),
        };
    };
    let name = words[at].as_str();
    let Some(command) = definition.find_subcommand(name) else {
        if is_model_file(name) {
            let mut words = words;
            words.insert(at, "chat".into());
            return translate(definition, words.into_iter().map(OsString::from).collect());
        }
        return match answer(name, &words[at + 1..]) {
            Some(why) => Err(Failure::usage(why)),
            None => Ok(args),
        };
    };
    let nested = words.get(at + 1).and_then(|word| command.find_subcommand(word));
    let (command, at) = nested.map_or((command, at), |nested| (nested, at + 1));
    let words = Words { definition, command, name: words[1..=at].join(" ") }.translate(&words, at)?;
    Ok(words.into_iter().map(OsString::from).collect())
}

/// Place of the command: the first word that is neither a global option nor its value; `None` without one.
fn command_at(definition: &Command, words: &[String]) -> Option<usize> {
    let mut at = 1;
    loop {
        let word = words.get(at)?;
        let Some(option) = word.strip_prefix("--") else {
            return (!word.starts_with('-')).then_some(at);
        };
        let global = definition.get_arguments().find(|arg| arg.get_long() == Some(option));
        at += match global {
            Some(arg) if matches!(arg.get_action(), ArgAction::Set) => 2,
            Some(_) => 1,
            // `--config=FILE`
            None if option.contains('=') => 1,
            None => return None,
        };
    }
}

/// Whether a word in place of a command is a model to chat with.
fn is_model_file(name: &str) -> bool {
    let path = Path::new(name);
    name.to_ascii_lowercase().ends_with(".gguf") || path.join("config.json").is_file()
}

/// Whether a word is an option: a dash, and no number behind it.
fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word[1..].parse::<f64>().is_err()
}

/// Hint for `kvasir bench` without a subcommand.
const BENCH_HINT: &str =
    "name a benchmark: kvasir bench pp MODEL (prefill), tg MODEL (decoding) or offline MODEL";

/// The arguments of one command.
struct Words<'a> {
    definition: &'a Command,
    command: &'a Command,
    /// As typed, for errors.
    name: String,
}

impl Words<'_> {
    /// Whether the command has this option, given without dashes.
    fn has(&self, long: &str) -> bool {
        let arguments = self.command.get_arguments().chain(self.definition.get_arguments());
        long == "help" || arguments.into_iter().any(|arg| arg.get_long() == Some(long))
    }

    fn takes_model(&self) -> bool {
        self.command.get_positionals().any(|arg| arg.get_id() == "model")
    }

    /// Rewrites what follows the command, which ends at `at`.
    fn translate(&self, words: &[String], at: usize) -> Result<Vec<String>, Failure> {
        let (mut out, mut rest) = (words[..=at].to_vec(), words[at + 1..].iter().peekable());
        let mut models = Vec::new();
        while let Some(word) = rest.next() {
            if word == "--" {
                out.push(word.clone());
                out.extend(rest.cloned());
                break;
            }
            let (option, attached) =
                word.split_once('=').map_or((word.as_str(), None), |(o, v)| (o, Some(v)));
            let is_own = option.strip_prefix("--").is_some_and(|long| self.has(long)) || option == "-h";
            let known = OPTIONS.iter().find(|known| known.names.contains(&option));
            let (Some(known), false, true) = (known, is_own, is_option(word)) else {
                out.push(word.clone());
                continue;
            };
            match known.meaning {
                Meaning::Instead(why) => return Err(Failure::usage(format!("`{option}`: {why}"))),
                Meaning::Same(ours) => {
                    let Some(own) = ours.iter().find(|own| self.has(own)) else {
                        return Err(Failure::usage(self.unsupported_option(option, ours[0])));
                    };
                    let value = attached.or_else(|| rest.peek().map(|next| next.as_str()));
                    if let Some((_, why)) =
                        value.and_then(|value| known.defaults.iter().find(|(v, _)| *v == value))
                    {
                        return Err(Failure::usage(format!(
                            "`{option} {}`: {why}",
                            value.unwrap_or_default()
                        )));
                    }
                    out.push(attached.map_or_else(|| format!("--{own}"), |value| format!("--{own}={value}")));
                }
                Meaning::Model => {
                    let value = attached
                        .map(str::to_owned)
                        .or_else(|| rest.next_if(|next| !is_option(next)).cloned());
                    let Some(model) = value.filter(|_| self.takes_model()) else {
                        return Err(Failure::usage(format!("`{option}`: {}", self.about_models())));
                    };
                    models.push(model);
                }
            }
        }
        if let [first, second, ..] = models.as_slice() {
            return Err(Failure::usage(format!("two models are given: `{first}` and `{second}`; name one")));
        }
        out.splice(at + 1..at + 1, models);
        Ok(out)
    }

    /// The error for an option whose counterpart `ours` this command does not have.
    fn unsupported_option(&self, option: &str, ours: &str) -> String {
        match (self.name.as_str(), ours) {
            ("bench", _) => format!("`{option}`: {BENCH_HINT}"),
            ("tokenize", "prompt") => {
                format!("`{option}`: texts come from standard input: echo TEXT | kvasir tokenize MODEL")
            }
            (name, _) => format!("`{option}` is --{ours}, which `kvasir {name}` does not have"),
        }
    }

    fn about_models(&self) -> String {
        match self.name.as_str() {
            name if self.takes_model() => {
                format!("needs a model behind it; or name it first: kvasir {name} MODEL")
            }
            "bench" => BENCH_HINT.to_owned(),
            "bench serve" => {
                "it measures a running server with the model of that server: kvasir bench serve URL"
                    .to_owned()
            }
            name => format!("`kvasir {name}` takes no model"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn translated(line: &str) -> Result<String, String> {
        let args = line.split(' ').map(OsString::from).collect();
        let words = translate(&Cli::command(), args).map_err(|failure| failure.to_string())?;
        Ok(words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_with_the_same_meaning_are_translated() {
        for (given, wanted) in [
            ("kvasir chat -m f.gguf -c 4096 -t 8", "kvasir chat f.gguf --max-model-len 4096 --threads 8"),
            ("kvasir serve --ctx-size=4096 --model a/b", "kvasir serve a/b --max-model-len=4096"),
            ("kvasir run -m f.gguf hello -n 5", "kvasir run f.gguf hello --max-tokens 5"),
            ("kvasir run -hf a/b:Q8_0 -p hi --temp 0", "kvasir run a/b:Q8_0 --prompt hi --temperature 0"),
            ("kvasir bench tg -m f.gguf -n 5", "kvasir bench tg f.gguf --tokens 5"),
            ("kvasir serve f -np 4 -a x", "kvasir serve f --max-num-seqs 4 --model-name x"),
            ("kvasir serve f --served-model-name x", "kvasir serve f --model-name x"),
            ("kvasir --config f.toml serve -m x", "kvasir --config f.toml serve x"),
            ("kvasir f.gguf -c 16", "kvasir chat f.gguf --max-model-len 16"),
            ("kvasir run -- -m f", "kvasir run -- -m f"),
            ("kvasir chat --max-model-len 8 --seed -1", "kvasir chat --max-model-len 8 --seed -1"),
        ] {
            assert_eq!(translated(given).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn other_options_are_explained_by_name() {
        for (given, part) in [
            ("kvasir chat f -ngl 99", "`-ngl`: "),
            ("kvasir serve f --gpu-memory-utilization=0.9", "--memory-utilization"),
            ("kvasir serve f --pipeline-parallel-size 2", "leave it out"),
            ("kvasir serve f --dtype auto", "leave it out"),
            ("kvasir serve f --kv-cache-dtype auto", "leave it out"),
            ("kvasir serve f --load-format auto", "leave it out"),
            ("kvasir serve f --task embed", "of embeddings; leave it out"),
            ("kvasir models -c 4096", "--max-model-len, which `kvasir models` does not have"),
            ("kvasir models -m f", "takes no model"),
            ("kvasir bench -m f -p 16 -n 8", "kvasir bench pp MODEL"),
            ("kvasir bench throughput --model f", "offline MODEL"),
            ("kvasir bench serve --model f", "kvasir bench serve URL"),
            ("kvasir tokenize -m f -p hi", "standard input"),
            ("kvasir chat --url http://a/v1", "at its address"),
            ("kvasir chat -m", "kvasir chat MODEL"),
            ("kvasir chat -m a -m b", "two models"),
            ("kvasir chat f -n -1", "leave it out"),
            ("kvasir chat f -c 0", "leave it out"),
        ] {
            let why = translated(given).unwrap_err();
            assert!(why.contains(part) && why.lines().count() == 1, "{given}: {why}");
        }
    }

    /// Every target is an option of some command, and no name is listed twice.
    #[test]
    fn the_tables_name_our_own_options() {
        let definition = Cli::command();
        let mut longs = std::collections::BTreeSet::new();
        let mut commands: Vec<&Command> = definition.get_subcommands().collect();
        commands.extend(definition.get_subcommands().flat_map(Command::get_subcommands));
        for command in commands {
            longs.extend(command.get_arguments().filter_map(|arg| arg.get_long()));
        }
        let mut names = std::collections::BTreeSet::new();
        for option in OPTIONS {
            option.names.iter().for_each(|name| assert!(names.insert(*name), "{name} stands twice"));
            if let Meaning::Same(ours) = option.meaning {
                ours.iter().for_each(|own| assert!(longs.contains(own), "--{own}"));
            }
        }
    }
}
