//! Argument checking of filters and methods against Python's signatures.
//!
//! Calls that Python would reject are rejected here, so that a misnamed argument does not render
//! silently.

use crate::error::{Run, TemplateError};
use crate::state::CallArgs;

/// Rejects surplus positional arguments, unknown names, and parameters given twice.
fn fits(name: &str, params: &[&str], given: &CallArgs) -> Run<()> {
    if given.positional.len() > params.len() {
        return Err(TemplateError::new(format!("{name} takes at most {} argument(s)", params.len())));
    }
    for (key, _) in &given.named {
        match params.iter().position(|p| *p == &**key) {
            Some(place) if place >= given.positional.len() => {}
            Some(_) => {
                return Err(TemplateError::new(format!("{name} got multiple values for argument '{key}'")));
            }
            None => {
                return Err(TemplateError::new(format!("{name} got an unexpected keyword argument '{key}'")));
            }
        }
    }
    Ok(())
}

/// Checks the arguments of a filter.
pub(crate) fn filter(name: &str, given: &CallArgs) -> Run<()> {
    let params: &[&str] = match name {
        // These pass arguments on, or define the names themselves.
        "format" | "map" | "select" | "reject" | "selectattr" | "rejectattr" => return Ok(()),
        "attr" => &["name"],
        "batch" => &["linecount", "fill_with"],
        "center" => &["width"],
        "d" | "default" => &["default_value", "boolean"],
        "dictsort" => &["case_sensitive", "by", "reverse"],
        "filesizeformat" => &["binary"],
        "float" => &["default"],
        "groupby" => &["attribute", "default", "case_sensitive"],
        "indent" => &["width", "first", "blank"],
        "int" => &["default", "base"],
        "join" => &["d", "attribute"],
        "max" | "min" | "unique" => &["case_sensitive", "attribute"],
        "replace" => &["old", "new", "count"],
        "round" => &["precision", "method"],
        "slice" => &["slices", "fill_with"],
        "sort" => &["reverse", "case_sensitive", "attribute"],
        "sum" => &["attribute", "start"],
        "tojson" => &["ensure_ascii", "indent", "separators", "sort_keys"],
        "trim" => &["chars"],
        "truncate" => &["length", "killwords", "end", "leeway"],
        "xmlattr" => &["autospace"],
        _ => &[],
    };
    fits(name, params, given)
}

/// Checks the arguments of a string method.
pub(crate) fn text_method(name: &str, given: &CallArgs) -> Run<()> {
    match name {
        "format" => Ok(()),
        "split" | "rsplit" => fits(name, &["sep", "maxsplit"], given),
        "splitlines" => fits(name, &["keepends"], given),
        "expandtabs" => fits(name, &["tabsize"], given),
        "count" | "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" | "replace" => {
            unnamed(name, 3, given)
        }
        "center" | "ljust" | "rjust" => unnamed(name, 2, given),
        "strip" | "lstrip" | "rstrip" | "join" | "partition" | "rpartition" | "removeprefix"
        | "removesuffix" | "zfill" | "format_map" => unnamed(name, 1, given),
        _ => unnamed(name, 0, given),
    }
}

/// Rejects named arguments, and more than `most` positional ones.
pub(crate) fn unnamed(name: &str, most: usize, given: &CallArgs) -> Run<()> {
    if let Some((key, _)) = given.named.first() {
        return Err(TemplateError::new(format!("{name}() takes no keyword argument '{key}'")));
    }
    if given.positional.len() > most {
        let got = given.positional.len();
        return Err(TemplateError::new(format!("{name}() takes at most {most} argument(s), got {got}")));
    }
    Ok(())
}
