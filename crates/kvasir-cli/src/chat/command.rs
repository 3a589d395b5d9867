//! Slash commands of `kvasir chat`: table, help texts and parser.

use std::path::PathBuf;

/// A slash command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    System(Option<String>),
    Fork(usize),
    Branch(Option<usize>),
    Rewind(usize),
    Retry,
    Clear,
    New,
    Set(Option<(String, String)>),
    Tools(Option<PathBuf>),
    /// File, and whether an existing one is overwritten.
    Save(PathBuf, bool),
    Load(PathBuf),
    Stats,
    Model(Option<PathBuf>),
    Quit,
}

/// Name, arguments and help text of each command.
pub(crate) const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "these lines; so does /?"),
    ("/system", "[TEXT]", "show or set the standing instructions; - takes them away"),
    ("/rewind", "[N]", "take back the last N questions and what followed"),
    ("/retry", "", "ask the last question again"),
    ("/clear", "", "forget this conversation; standing instructions stay"),
    ("/new", "", "begin another conversation in a branch of its own; /branch goes back"),
    ("/fork", "[N]", "go on in a copy that ends before the last N questions; 0 copies all"),
    ("/branch", "[N]", "list the branches, or go on in branch N"),
    ("/set", "[NAME VALUE]", "list what can be set, or set it; - gives it back to the model"),
    ("/tools", "[FILE]", "offer the tools of a JSON file; without one, none"),
    ("/save", "FILE[!]", "write this branch as JSON, ready to be sent to the API; ! overwrites a file"),
    ("/load", "FILE", "replace this branch by a file's messages"),
    ("/stats", "", "tokens, speed and cache hits so far"),
    ("/model", "[MODEL]", "show the model, or go on with another one"),
    ("/quit", "", "leave; so does Ctrl-D"),
];

impl Command {
    /// Parses a line that begins with a slash.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let text = (!rest.is_empty()).then(|| rest.to_owned());
        let none = |command: Self| {
            if rest.is_empty() { Ok(command) } else { Err(format!("{name} takes no argument")) }
        };
        let number = |default: usize| match rest {
            "" => Ok(default),
            _ => rest.parse::<usize>().map_err(|_| format!("{name} takes a number, not `{rest}`")),
        };
        let file = || text.clone().map(PathBuf::from).ok_or_else(|| format!("{name} needs a file"));
        match name {
            "/help" | "/?" => none(Self::Help),
            "/system" => Ok(Self::System(text)),
            "/rewind" => match number(1)? {
                0 => Err("/rewind takes a number from 1, not `0`".into()),
                turns => Ok(Self::Rewind(turns)),
            },
            "/retry" | "/regen" => none(Self::Retry),
            "/clear" | "/reset" => none(Self::Clear),
            "/new" => none(Self::New),
            "/fork" => number(0).map(Self::Fork),
            "/branch" if rest.is_empty() => Ok(Self::Branch(None)),
            "/branch" => Ok(Self::Branch(Some(number(0)?))),
            "/set" => match (text.is_some(), rest.split_once(char::is_whitespace)) {
                (false, _) => Ok(Self::Set(None)),
                (true, Some((name, value))) => Ok(Self::Set(Some((name.into(), value.trim().into())))),
                (true, None) => Err(format!("/set {rest} needs a value")),
            },
            "/tools" => Ok(Self::Tools(text.map(PathBuf::from))),
            "/save" => match rest.strip_suffix('!').filter(|name| !name.is_empty()) {
                Some(name) => Ok(Self::Save(name.into(), true)),
                None => file().map(|name| Self::Save(name, false)),
            },
            "/load" => file().map(Self::Load),
            "/stats" => none(Self::Stats),
            "/model" => Ok(Self::Model(text.map(PathBuf::from))),
            "/quit" | "/exit" | "/bye" => none(Self::Quit),
            _ => Err(format!("there is no command {name}; /help lists them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_in_the_help_is_read() {
        for (name, arguments, _) in COMMANDS {
            let line = match *arguments {
                "FILE" | "FILE[!]" => format!("{name} x"),
                _ => (*name).to_owned(),
            };
            assert!(Command::parse(&line).is_ok(), "{line}");
        }
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(Command::parse("/rewind 2"), Ok(Command::Rewind(2)));
        assert_eq!(Command::parse("/set top_p  0.5"), Ok(Command::Set(Some(("top_p".into(), "0.5".into())))));
        assert_eq!(Command::parse("/system a b"), Ok(Command::System(Some("a b".into()))));
        for bad in ["/rewind two", "/rewind 0", "/branch x", "/save", "/quit now", "/nothing", "/set x"] {
            assert!(Command::parse(bad).is_err(), "{bad}");
        }
    }
}
