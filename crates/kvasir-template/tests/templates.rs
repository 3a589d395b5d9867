//! Chat templates against recorded renderings of the reference renderer, and hostile templates
//! against the limits.
//!
//! The reference is Jinja2's immutable sandbox, configured as in Transformers.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_template::{ChatTemplate, Limits};
use serde_json::{Map, Value as Json, json};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

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

const SMALL: Limits = Limits {
    fuel: 200_000,
    fuel_per_value: 33,
    max_fuel: 2_000_000,
    value_bytes: 1 << 20,
    total_bytes: 8 << 20,
    depth: 300,
};

/// Long chats take quadratic resources in many templates: bytes when concatenated in one variable,
/// steps when each message scans all others. Neither may be live at once.
#[test]
fn long_chats_render() {
    let chat = |n: usize| {
        let messages: Vec<Json> = (0..n)
            .map(|i| json!({"role": "user", "content": format!("question {i} {}", "x".repeat(50)), "parts": vec![0; 60]}))
            .collect();
        json!({ "messages": messages }).as_object().unwrap().clone()
    };
    let rendered = |source: &str, n: usize| {
        let template = ChatTemplate::new(source).unwrap().with_limits(SMALL);
        template.render(&chat(n), 0).map(|text| text.len()).map_err(|e| e.to_string())
    };
    let grown = "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ '<' ~ m.role ~ '>' %}\
                 {% set ns.s = ns.s ~ m.content %}{% endfor %}{{ ns.s }}";
    assert_eq!(rendered(grown, 1_000), Ok(68_890));
    let with_macro = "{% macro add(s, m) %}{{ s }}{{ m.content }}{% endmacro %}{% set ns = namespace(s='') %}\
                      {% for m in messages %}{% set ns.s = add(ns.s, m) %}{% endfor %}{{ ns.s }}";
    assert_eq!(rendered(with_macro, 1_000), Ok(62_890));
    let looked_through = "{% for m in messages %}{% for n in messages %}{% if n.role == 'system' %}{{ n }}{% endif %}\
                          {% endfor %}x{% endfor %}";
    assert_eq!(rendered(looked_through, 300), Ok(300));
}

/// Each template must fail soon, with an error that names its line, and with bounded memory.
#[test]
fn endless_templates_end() {
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
        // Small values that contain each other many times.
        "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ ns.s | tojson }}",
        "{% set ns = namespace(s={}) %}{% for i in range(64) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s == ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(15) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}\
         {% for i in range(100000) %}{{ '' if ns.s == ns.s }}{% endfor %}",
        // Values live at the same time: held by variables, by calls, or by an unfinished
        // expression.
        "{% for i in range(1000) %}{% set n = namespace(s='x' * 100000 ~ i) %}{% endfor %}",
        "{% macro m(s) %}{{ m('x' * 100000 ~ s | length) }}{% endmacro %}{{ m('') }}",
        "{% macro m(s) %}{{ 'x' * 100000 }}{{ m(s) }}{% endmacro %}{{ m('') }}",
        "{% for i in range(1000) %}{% set s = 'x' * 100000 ~ i %}{% macro m() %}{% endmacro %}{% endfor %}",
        "{% set n = namespace(s=0) %}{% macro f() %}{% set n.s = 'x' * 100000 ~ 'y' %}{% endmacro %}\
         {% macro g() %}{{ f() ~ (n.s if n.s ~ g() else 1) }}{% endmacro %}{{ g() }}",
        // Released values still cost fuel.
        "{% for i in range(100000) %}{% set s = 'x' * 1000000 %}{% endfor %}",
        "{% for i in range(100000) %}{% set s = '{:04096,}'.format(1) %}{% endfor %}",
        // Short templates with large output.
        "{{ ('%(a)4096s' * 20000) % {'a': 1} }}",
        "{{ ('{0:4096}' * 20000).format(1) }}",
        "{{ range(10000) | list | tojson(indent='x' * 1000) }}",
        "{{ range(10000) | list | tojson(separators=['x' * 1000, '']) }}",
    ] {
        let got = ChatTemplate::new(source).and_then(|t| t.with_limits(SMALL).render(&Map::new(), 0));
        let error = got.map(|text| text.len()).expect_err(source);
        assert_eq!(error.line(), Some(1), "{source}: {error}");
    }
}

/// Fuel grows with the input, up to its maximum.
#[test]
fn fuel_grows_with_the_input_up_to_its_maximum() {
    let limits = |max_fuel| Limits { fuel: 1_000, fuel_per_value: 10, max_fuel, ..SMALL };
    let renders = |loops: u64, values: usize, max_fuel: u64| {
        let variables = json!({"n": loops, "messages": vec![0; values]});
        let template = ChatTemplate::new("{% for i in range(n) %}{% endfor %}").unwrap();
        template.with_limits(limits(max_fuel)).render(variables.as_object().unwrap(), 0).is_ok()
    };
    assert!(renders(500, 0, 100_000) && !renders(5_000, 0, 100_000));
    assert!(renders(5_000, 1_000, 100_000) && !renders(5_000, 1_000, 2_000));
}

#[test]
fn a_canceled_rendering_ends() {
    let endless = Limits { fuel: u64::MAX, max_fuel: u64::MAX, ..SMALL };
    let nested = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(nested).unwrap().with_limits(endless);
    let canceled = Arc::new(AtomicBool::new(false));
    let error = thread::scope(|scope| {
        let rendering = scope.spawn(|| template.render_cancelable(&Map::new(), 0, &canceled));
        canceled.store(true, Ordering::Relaxed);
        rendering.join().unwrap().unwrap_err()
    });
    assert!(error.to_string().contains("canceled"), "{error}");
}

/// An inconsistent order yields an error or some order, never a panic.
#[test]
fn sorting_incomparable_values_does_not_panic() {
    let sort = |source: &str| render(source, &Map::new(), 0);
    let mixed = "{% set ns = namespace(s=[]) %}{% for i in range(300) %}\
                 {% set ns.s = ns.s + [(i * 7919) % 101 if i % 3 else 'x' ~ (i % 7)] %}{% endfor %}";
    for filter in ["sort", "groupby(0)", "max", "unique | sort"] {
        let error = sort(&format!("{mixed}{{{{ ns.s | {filter} | list }}}}"));
        assert!(!format!("{error:?}").contains("renderer failed"), "{filter}: {error:?}");
    }
    assert!(sort(&format!("{mixed}{{{{ ns.s | sort }}}}")).unwrap_err().contains("not supported"));
    let nan = "{% set nan = 'nan' | float %}{% set ns = namespace(s=[]) %}{% for i in range(300) %}\
               {% set ns.s = ns.s + [(i * 7919) % 101 if i % 3 else nan] %}{% endfor %}";
    assert!(sort(&format!("{nan}{{{{ ns.s | sort }}}}")).unwrap().contains("nan"));
    assert_eq!(
        sort("{{ [3, 1, 2, 1.0] | sort }}{{ [1, 1.0, 2] | sort(reverse=true) }}").unwrap(),
        "[1, 1.0, 2, 3][2, 1, 1.0]"
    );
}

/// A finished loop queried while another loop's filter looks for its first item.
#[test]
fn loop_variables_end_with_the_loop() {
    let source = "{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}\
                  {% for i in [1] if ns.l.revindex0 > 5 %}{{ i }}{% endfor %}|";
    assert_eq!(render(source, &Map::new(), 0).unwrap(), "|");
}

#[test]
fn a_left_aligned_number_is_filled_with_spaces() {
    assert_eq!(render("{{ '%-05d|%0-5d|%05d' % (5, 5, 5) }}", &Map::new(), 0).unwrap(), "5    |5    |00005");
}

/// Keys of similar shape must not collide in one hash bucket.
#[test]
fn large_mappings_compare_in_linear_time() {
    let source = "{% set d = dict(range(60000) | batch(2)) %}{{ d.items() | unique | list | length }}\
                  {{ {(1, 0.0): 'a'}[(true, -0.0)] }}";
    assert_eq!(render(source, &Map::new(), 0).unwrap(), "30000a");
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
    // Chains nest to the left too, and their ASTs are dropped recursively on any thread's stack.
    for link in
        ["+1", "-1", "*1", "//1", "%1", "**1", " or 1", " and 1", ".a", "[0]", "()", "|trim", " if 1", "[:]"]
    {
        let chain = |n: usize| format!("{{{{ a{} }}}}", link.repeat(n));
        assert!(ChatTemplate::new(&chain(200_000)).is_err(), "{link}");
        assert!(ChatTemplate::new(&chain(500)).is_ok(), "{link}");
        assert!(ChatTemplate::new(&chain(500).repeat(20)).is_ok(), "{link}: each tag by itself");
    }
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
