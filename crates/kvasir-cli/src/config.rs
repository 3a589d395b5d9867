//! Options from a TOML file, under their command line names. Precedence: flags, environment, file,
//! defaults.
//!
//! The file's options are appended to the arguments and parsed by clap, so both have one
//! validation.

use crate::io::failure::Failure;
use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt::Write,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// Options that a file cannot set.
const NOT_HERE: [&str; 4] = ["config", "print-config", "help", "version"];

/// The command that runs despite an invalid file, in order to report its errors.
const DOCTOR: &str = "doctor";

/// An option's key in the file: its flag, or the name of a positional argument.
fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_owned)
}

fn keys(command: &Command, into: &mut BTreeSet<String>) {
    into.extend(command.get_arguments().map(key).filter(|key| !NOT_HERE.contains(&key.as_str())));
    command.get_subcommands().for_each(|sub| keys(sub, into));
}

/// The selected subcommand and its matches.
fn chosen<'a>(mut command: &'a Command, mut matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, inner)) = matches.subcommand()
        && let Some(sub) = command.find_subcommand(name)
    {
        (command, matches) = (sub, inner);
    }
    (command, matches)
}

/// Adds the options of the `--config` file that neither arguments nor environment set.
pub(crate) fn with_file(command: Command, args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    // Argument errors are reported by the final parse.
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&args) else {
        return Ok(args);
    };
    let (chosen, given) = chosen(&command, &matches);
    let path = given.try_get_one::<PathBuf>("config").ok().flatten().or(matches.get_one("config"));
    let Some(path) = path else { return Ok(args) };
    match added(&command, chosen, given, path) {
        Ok(added) => Ok(insert(args, added)),
        // `doctor` reports the file's errors among its checks.
        Err(_) if chosen.get_name() == DOCTOR => Ok(args),
        Err(why) => Err(why),
    }
}

/// The arguments that a file adds to those of `chosen`.
fn added(
    command: &Command,
    chosen: &Command,
    given: &ArgMatches,
    path: &Path,
) -> Result<Vec<OsString>, Failure> {
    let named = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = Failure::read(path)?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let (line, column) = line_and_column(&text, error.span().map_or(0, |span| span.start));
        named(format!("{} at line {line}, column {column}", error.message().trim()))
    })?;
    let mut known = BTreeSet::new();
    keys(command, &mut known);
    if let Some(unknown) = table.keys().find(|key| !known.contains(*key)) {
        return Err(named(format!("unknown option `{unknown}`")));
    }
    let mut added = Vec::new();
    for arg in chosen.get_arguments() {
        let key = key(arg);
        let source = given.value_source(arg.get_id().as_str());
        let is_given = matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        if let Some(value) = table.get(&key).filter(|_| !is_given) {
            added.extend(arguments(arg, &key, value).map_err(named)?);
        }
    }
    Ok(added)
}

/// Line and column of a byte of a text, both from 1. Columns count characters.
fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(byte)];
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// An option of the file as command line arguments.
fn arguments(arg: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    if let Value::Array(items) = value {
        let each: Result<Vec<_>, String> = items.iter().map(|item| arguments(arg, key, item)).collect();
        return each.map(|lists| lists.concat());
    }
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(on) => on.to_string(),
        _ => return Err(format!("`{key}` must be a text, a number, true or false, or a list of those")),
    };
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    Ok(match (is_flag, text.as_str(), arg.get_long()) {
        (true, "true", _) => vec![format!("--{key}").into()],
        (true, "false", _) => Vec::new(),
        (true, other, _) => return Err(format!("`{key}` is true or false, not {other}")),
        (false, _, Some(_)) => vec![format!("--{key}={text}").into()],
        (false, _, None) => vec![text.into()],
    })
}

/// Inserts before a `--`, after which nothing is parsed as an option.
fn insert(mut args: Vec<OsString>, added: Vec<OsString>) -> Vec<OsString> {
    let at = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    args.splice(at..at, added);
    args
}

/// Whether a file sets an option whose value is a secret.
pub(crate) fn holds_secrets(command: &Command, path: &Path) -> bool {
    let table = Failure::read(path).ok().and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    let is_secret = |command: &Command| {
        command.get_arguments().any(|arg| arg.is_hide_env_values_set() && table.contains_key(&key(arg)))
    };
    is_secret(command) || command.get_subcommands().any(is_secret)
}

/// Prints all options of the chosen command as a file that can be read back. Secrets are not
/// printed.
pub(crate) fn print(command: &Command, matches: &ArgMatches) -> String {
    let (chosen, given) = chosen(command, matches);
    let mut out = String::new();
    for arg in chosen.get_arguments() {
        let key = key(arg);
        if NOT_HERE.contains(&key.as_str()) {
            continue;
        }
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            // A variable may say `1` or `yes`, which a file may not.
            let _ = writeln!(out, "{key} = {}", given.get_flag(arg.get_id().as_str()));
            continue;
        }
        let Some(values) = given.get_raw(arg.get_id().as_str()) else { continue };
        let values: Vec<String> = values.map(|value| toml_text(&value.to_string_lossy())).collect();
        // Writing to a String cannot fail.
        let _ = match (values.as_slice(), arg.is_hide_env_values_set()) {
            (secret, true) => writeln!(out, "# {key}: {} given, not printed", secret.len()),
            ([one], _) if !matches!(arg.get_action(), ArgAction::Append) => writeln!(out, "{key} = {one}"),
            (list, _) => writeln!(out, "{key} = [{}]", list.join(", ")),
        };
    }
    out
}

/// A value in TOML: bare if it round-trips, else quoted.
fn toml_text(raw: &str) -> String {
    let read = format!("x = {raw}").parse::<Table>().ok().and_then(|mut table| table.remove("x"));
    match read {
        Some(value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_)))
            if value.to_string() == raw =>
        {
            raw.to_owned()
        }
        _ => Value::String(raw.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_errors_count_lines_and_characters() {
        let text = "a = 1\nü = ?\n";
        assert_eq!([0, 6, 11, 99].map(|byte| line_and_column(text, byte)), [(1, 1), (2, 1), (2, 5), (3, 1)]);
    }

    #[test]
    fn values_are_quoted_unless_they_come_back_the_same() {
        for (raw, printed) in [
            ("8000", "8000"),
            ("0.9", "0.9"),
            ("true", "true"),
            ("1_000", "\"1_000\""),
            ("on", "\"on\""),
            ("127.0.0.1", "\"127.0.0.1\""),
            ("a\"b\nc", "\"a\\\"b\\nc\""),
        ] {
            let text = toml_text(raw);
            let back = format!("x = {text}").parse::<Table>().unwrap();
            let back = match &back["x"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(back, raw, "{printed} {text}");
        }
    }
}
