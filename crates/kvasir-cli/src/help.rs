//! Arranges `-h` and `--help`: options under headings, with rare ones hidden from the short help.

use clap::{Arg, Command};

/// A group of options under one heading, by flag.
struct Group {
    heading: &'static str,
    /// Flags shown in the short help, too.
    common: &'static [&'static str],
    rest: &'static [&'static str],
}

const GROUPS: [Group; 16] = [
    Group {
        heading: "Model and machine",
        common: &["threads", "kv-dtype"],
        rest: &["backend", "precision", "instructions", "sim-preset", "machine"],
    },
    Group {
        heading: "Network",
        common: &["host", "port", "api-key", "model-name"],
        rest: &[
            "api-key-file",
            "admin-key",
            "metrics-key",
            "open-health",
            "health-port",
            "allowed-origins",
            "tls-cert",
            "tls-key",
            "grace",
            "unknown-fields",
            "strip-billing-header",
            "rerank-by",
            "allow-pull",
            "slot-save-path",
        ],
    },
    Group {
        heading: "Generation",
        common: &["system", "temperature", "max-tokens", "tools"],
        rest: &[
            "stop",
            "ignore-eos",
            "top-k",
            "top-p",
            "min-p",
            "repetition-penalty",
            "presence-penalty",
            "frequency-penalty",
            "history",
            "edit-mode",
            "generation-config",
            "chat-template",
            "chat-template-kwargs",
            "tool-parser",
            "reasoning-parser",
            "constrain-tool-calls",
            "context-shift",
        ],
    },
    Group {
        heading: "Samplers of llama.cpp",
        common: &[],
        rest: &[
            "samplers",
            "typical-p",
            "top-n-sigma",
            "xtc-probability",
            "xtc-threshold",
            "dynatemp-range",
            "dynatemp-exponent",
            "repeat-last-n",
            "dry-multiplier",
            "dry-base",
            "dry-allowed-length",
            "dry-penalty-last-n",
            "dry-sequence-breaker",
            "mirostat",
            "mirostat-tau",
            "mirostat-eta",
        ],
    },
    Group { heading: "Structured output", common: &["json-schema", "regex", "grammar"], rest: &[] },
    Group {
        heading: "Workload",
        common: &["workload", "requests", "rate", "prompt-tokens", "output-tokens"],
        rest: &["burstiness", "shared-prefix", "repetition", "faults"],
    },
    Group {
        heading: "KV cache",
        common: &["kv-capacity", "max-model-len"],
        rest: &[
            "cache",
            "memory-utilization",
            "overcommit",
            "state-memory",
            "state-interval",
            "block-size",
            "rings",
            "prefix-cache",
        ],
    },
    Group {
        heading: "Scheduling",
        common: &["policy", "order", "max-num-seqs", "spec"],
        rest: &[
            "accept",
            "acceptance",
            "max-num-batched-tokens",
            "watermark",
            "overlap",
            "batch-sizes",
            "graph-max-batch",
        ],
    },
    Group {
        heading: "Scheduling: --policy chunked",
        common: &[],
        rest: &["max-extend-tokens", "mixed", "step-target-ms", "step-target-times"],
    },
    Group {
        heading: "Scheduling: --policy prefill-first",
        common: &[],
        rest: &["delay-factor", "chunked-prefill", "long-prefill-cap"],
    },
    Group {
        heading: "Scheduling: --policy rectangular",
        common: &[],
        rest: &[
            "chunk-size",
            "interleave",
            "max-batch-tkv",
            "max-batch",
            "rules",
            "pausing",
            "long-output-first",
        ],
    },
    Group {
        heading: "Several engines",
        common: &["dp", "replicas", "route"],
        rest: &[
            "tp",
            "rank-control",
            "ep",
            "prefill-coalescing",
            "role",
            "tokenizer-processes",
            "kv-events",
            "kv-events-replay",
            "kv-events-topic",
            "load-events",
        ],
    },
    Group {
        heading: "Limits",
        common: &[],
        rest: &[
            "max-requests",
            "max-requests-per-key",
            "max-request-tokens",
            "rate-limit",
            "max-priority",
            "max-connections",
            "max-connections-per-peer",
            "client-timeout",
            "step-timeout",
        ],
    },
    Group {
        heading: "Logging and metrics",
        common: &[],
        rest: &["log-format", "log-level", "otlp-endpoint", "metrics-alias"],
    },
    Group { heading: "Output", common: &["json", "html", "trace"], rest: &["html-steps"] },
    Group { heading: "Options file", common: &["config", "print-config"], rest: &[] },
];

/// Explained once, instead of an environment variable next to every option.
const VARIABLES: &str = "Options of the model, the KV cache, the scheduler and the server can also be set by environment variables \
                         (KVASIR_KV_DTYPE\nfor --kv-dtype) and by the file of --config. Flags take precedence over the \
                         environment, the environment over the file.";

/// The command with arranged help.
pub(crate) fn arranged(command: Command) -> Command {
    let command = command.mut_args(|arg| under_its_heading(arg.hide_env(true)));
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| command.mut_subcommand(name, arranged));
    let reads_variables = command.get_arguments().any(|arg| arg.get_long() == Some("policy"));
    if reads_variables { command.after_help(VARIABLES) } else { command }
}

fn under_its_heading(arg: Arg) -> Arg {
    let Some(name) = arg.get_long() else { return arg };
    let group = GROUPS.iter().find(|group| group.common.contains(&name) || group.rest.contains(&name));
    let Some(group) = group else { return arg };
    let is_rest = group.rest.contains(&name);
    arg.help_heading(group.heading).hide_short_help(is_rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    fn flags(command: &Command, into: &mut BTreeSet<String>) {
        into.extend(command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)));
        command.get_subcommands().for_each(|sub| flags(sub, into));
    }

    #[test]
    fn help_groups_list_each_flag_once() {
        let mut known = BTreeSet::new();
        flags(&crate::cli::Cli::command(), &mut known);
        let mut seen = BTreeSet::new();
        for name in GROUPS.iter().flat_map(|group| group.common.iter().chain(group.rest)) {
            assert!(known.contains(*name), "--{name} is no flag");
            assert!(seen.insert(name), "--{name} stands twice");
        }
    }

    /// The short help of the main commands fits on a screen.
    #[test]
    fn short_help_is_short() {
        for name in ["chat", "serve", "generate"] {
            let mut cli = arranged(crate::cli::Cli::command());
            let help = cli.find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.lines().count() <= 48, "{name}: {} lines\n{help}", help.lines().count());
            assert!(!help.contains("rectangular:") && !help.contains("[env:"), "{help}");
        }
    }

    #[test]
    fn serve_help_shows_its_own_step_target() {
        let mut cli = arranged(crate::cli::Cli::command());
        let help = cli.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        assert!(help.contains(&format!("serve {}]", crate::options::SERVING_TIMES)), "{help}");
    }

    /// Commands shown in a Markdown page, in code spans and blocks: the words after `kvasir`.
    fn shown(page: &str) -> Vec<Vec<String>> {
        let spans = page.split("```").enumerate().flat_map(|(at, part)| match at % 2 {
            0 => part.split('`').skip(1).step_by(2).collect::<Vec<_>>(),
            _ => part.lines().collect(),
        });
        let words = |span: &str| span.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let behind = |words: Vec<String>| {
            let at = words.iter().position(|word| word == "kvasir" || word.ends_with("/kvasir"))?;
            Some(words[at + 1..].to_vec())
        };
        spans.filter_map(|span| behind(words(span))).collect()
    }

    #[test]
    fn commands_in_the_pages_have_the_flags_that_are_shown() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let docs = ["", "how-to", "reference", "explanation"].map(|folder| root.join("docs").join(folder));
        let entries = docs.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let pages = entries.map(|entry| entry.unwrap().path());
        let pages = pages.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
        let cli = arranged(crate::cli::Cli::command());
        let mut checked = 0;
        for path in pages.chain([root.join("README.md")]) {
            for words in shown(&std::fs::read_to_string(&path).unwrap()) {
                if words.first().is_none_or(|first| cli.find_subcommand(first).is_none()) {
                    continue;
                }
                let mut command = &cli;
                let mut known = BTreeSet::new();
                for word in words.iter().take_while(|word| !["#", "|", "&&"].contains(&word.as_str())) {
                    if let Some(sub) = command.find_subcommand(word) {
                        command = sub;
                        flags(command, &mut known);
                    }
                    if let Some(flag) = word.trim_start_matches('[').strip_prefix("--") {
                        let end = flag.find(|c: char| !c.is_ascii_lowercase() && c != '-');
                        let flag = &flag[..end.unwrap_or(flag.len())];
                        let is_global = ["config", "print-config", "help"].contains(&flag);
                        let is_known = flag.is_empty() || is_global || known.contains(flag);
                        assert!(is_known, "{}: `kvasir {}` has no --{flag}", path.display(), words.join(" "));
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 50, "only {checked} flags were found");
    }
}
