//! Templates against recorded renderings of the reference renderer (Jinja2's immutable sandbox, set up as
//! Transformers sets it up), and against hostile ones.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_formats::{ChatTemplate, Limits};
use serde_json::{Map, Value as Json, json};
use std::path::Path;

fn render(source: &str, variables: &Map<String, Json>, now: i64) -> Result<String, String> {
    ChatTemplate::new(source).and_then(|t| t.render(variables, now)).map_err(|e| e.to_string())
}

#[test]
fn snippets_render_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/template_snippets.json");
    let all: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let variables = all["variables"].as_object().unwrap();
    let mut wrong = Vec::new();
    for case in all["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let got = render(source, variables, all["now"].as_i64().unwrap());
        let right = match (&got, case["text"].as_str()) {
            (Ok(got), Some(text)) => got == text,
            (Err(_), None) => true,
            _ => false,
        };
        if !right {
            wrong.push(format!("{source}\n  expected {:?}\n  got      {got:?}", case["text"].as_str()));
        }
    }
    assert!(wrong.is_empty(), "{}\n{} differ", wrong.join("\n"), wrong.len());
}

/// Each must end soon, with an error that names a line, and without taking much memory.
#[test]
fn endless_templates_end() {
    let small = Limits { fuel: 200_000, value_bytes: 1 << 20, total_bytes: 8 << 20, depth: 300 };
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}",
        "{{ range(1000000000000) }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [0] * 1000000000000 }}",
        "{{ '%1000000000d' % 5 }}",
        "{{ '{:1000000000}'.format(5) }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ [1] | batch(1000000000000, 0) | list }}",
        "{{ [1] | slice(1000000000000) | list }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set x %}{% for a in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}",
        "{% for a in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
        "{{ ('x' * 1000000) | list | join('y' * 1000000) }}",
        "{% for a in range(100000) %}{% macro m() %}{% endmacro %}{% endfor %}{% for a in range(100000) %}{% endfor %}",
        "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{% if 'y' in a %}{% endif %}{% endfor %}",
    ] {
        let got = ChatTemplate::new(source).and_then(|t| t.with_limits(small).render(&Map::new(), 0));
        let error = got.map(|text| text.len()).expect_err(source);
        assert!(error.place().starts_with("template line 1"), "{source}: {error}");
    }
}

#[test]
fn deep_nesting_is_refused_when_compiling() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("-", ""), ("not ", ""), ("{'a':", "}"), ("a[", "]"), ("a(", ")")]
    {
        let source = format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
        assert!(ChatTemplate::new(&source).is_err(), "{open}");
    }
    let source = "{% if a %}".repeat(100_000);
    assert!(ChatTemplate::new(&source).is_err());
}

#[test]
fn truncated_and_damaged_templates_never_panic() {
    let source = "{%- macro m(a, b=2) %}{{ a|default('x\\n')|tojson(indent=2) }}{% endmacro %}\n{# c #}{% for k, v in \
                  d.items() if v is not none recursive %}{{- loop.index ~ k[1:-1] -}}{% else %}{% raw %}{{{% endraw %}\
                  {% endfor %}{% call(x) m(1) %}{{ x }}é😀{% endcall %}{% set ns.x = {'a': [1.5e3, 0x1f]} %}";
    let variables = json!({"d": {"k": 1}});
    for end in (0..source.len()).filter(|&i| source.is_char_boundary(i)) {
        let _ = render(&source[..end], variables.as_object().unwrap(), 0);
        let _ = render(&source[end..], variables.as_object().unwrap(), 0);
    }
}
