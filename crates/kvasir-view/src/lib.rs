//! The step viewer: draws traces (schedule, KV slot map, timings) in saved HTML pages and on the
//! live page.
//!
//! [`page`] puts a trace into one self-contained HTML file. A live page loads [`script`] and
//! [`STYLE`] instead. It creates `new KvasirView(element, data, {follow: true, deep: false})` and
//! feeds it each step with `push(step)`.
//!
//! The script must not fetch anything: the tests of this crate check that a page has no URL and
//! that data cannot break out of its element. Pages must also draw traces that lack newer keys.
//!
//! # The data
//!
//! `{title, setup, names, first, total, steps, report}`:
//!
//! - `setup`: the configuration. `policy`, `cache`, `block_size`, `capacity` in slots,
//!   `dummy_blocks`, `max_model_len`, `max_num_seqs`, `max_num_batched_tokens`, `chunk_size`,
//!   `max_batch_tkv`, `rectangular`, `device`, `replicas`, `route`, `roles`, `tp`, `failures`, `notes`.
//! - `names`: `[tag, name]` pairs.
//! - `first`: number of steps omitted before the first of `steps`.
//! - `total`: number of steps in the run.
//! - `report`: `{numbers: [[name, text]], table: {head: [text], rows: [[text]]}, series: [{title,
//!   unit, points: [[x, y]]}], percentiles: [{name, values}]}` over the whole run. `values` are
//!   quantiles at equal distances, ascending, in nanoseconds. Without a report, rates are computed
//!   from the steps. With a report and no steps the page shows the figures alone, as tables.
//!   `fleet`, if there are several replicas, holds heat maps: `{seconds, replicas: [name], maps:
//!   [{title, unit, max, rows: [[value or null]]}]}`, a row per entry of `replicas` and a value per
//!   time bin of `seconds`. `max` is the upper end of the color scale, by default the largest value.
//!
//! A step is what one call of `schedule` decided, and what came back before the next call. An
//! absent key means no change:
//!
//! | key | value |
//! |---|---|
//! | `step`, `at` | step id (absent if nothing ran); start time in ns |
//! | `kind` | `prefill`, `decode`, `mixed` or `dummy` |
//! | `arrived` | `[id, prompt tokens, output limit, tag]` |
//! | `admitted`, `preempted` | `[id, tokens found in the prefix cache]`; ids, those of context shifts included |
//! | `rows` | `[id, phase, first token, tokens, redirected, left padding, drafts]` |
//! | | phase: 0 prefill, 1 decode; left padding in blocks |
//! | `again` | `[first id, count]`: requests that decode one more token, padded as the last time |
//! | `drafts` | `[id, parent node of each draft]`: token trees that the rows verify |
//! | | node 0 is the newest committed token, draft `i` is node `i + 1` |
//! | `accepted` | `[id, accepted nodes]`: results of this step's trees or of an earlier step's |
//! | `computed` | `[id, tokens in the cache before the first step]` |
//! | `skipped` | `[id, tokens in skipped chunks]` |
//! | `tables` | `[id, blocks kept, then new ones: an id, or [first, count]]` |
//! | `held` | `[id, reason]`: requests that the policy deferred |
//! | `rest_waiting`, `rest_running` | the reason of all other waiting or running requests |
//! | `spoke` | `[first id, count]`: requests that yielded one token |
//! | `outputs`, `ended` | `[id, new tokens]`; `[id, finish reason]` |
//! | `retired` | `[step, ns on the device]` |
//! | `num_tokens_across_dp` | `[step, [tokens of each engine]]` in lockstep; 0 is a dummy step |
//! | `room` | slots `[free, evictable, held, leased]` |
//! | `promised` | slots reserved for running requests |
//! | `map` | `[first block, blocks, state]` |
//! | | state: 0 free, 1 cached, 2 held, 3 leased, 4 dummy |
//! | `projection` | `[id, projected final length, [those of decoding requests, ascending]]` |
//! | | what the volume test of the rectangular policy computed |
//! | `waiting`, `running` | number of requests |
#![forbid(unsafe_code)]

/// The viewer's style sheet.
pub const STYLE: &str = include_str!("page/style.css");

const PAGE: &str = include_str!("page/page.html");

const SCRIPTS: [&str; 8] = [
    include_str!("page/words.js"),
    include_str!("page/model.js"),
    include_str!("page/draft_tree.js"),
    include_str!("page/panels.js"),
    include_str!("page/map.js"),
    include_str!("page/plots.js"),
    include_str!("page/fleet.js"),
    include_str!("page/app.js"),
];

/// The viewer's script, which defines `KvasirView` and nothing else.
pub fn script() -> String {
    format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPTS.concat())
}

/// Returns a self-contained page that draws `data`, a JSON object as described in the crate
/// documentation.
///
/// `data` is not validated; its `<` characters are escaped.
pub fn page(title: &str, data: &str) -> String {
    let mut out = String::with_capacity(PAGE.len() + STYLE.len() + data.len() + (1 << 16));
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else { break };
        out.push_str(before);
        match name {
            "title" => push_escaped(&mut out, title),
            "style" => out.push_str(STYLE),
            "script" => out.push_str(&script()),
            // In JSON `<` occurs only in strings. Escaped, it can neither end the element nor begin
            // a comment.
            _ => data.split('<').enumerate().for_each(|(i, part)| {
                out.push_str(if i > 0 { "\\u003c" } else { "" });
                out.push_str(part);
            }),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Appends text with `<` and `&` escaped, for the content of an HTML element.
fn push_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{STYLE, page, script};

    /// The relative luminance of a color such as `#5f6875`, by WCAG.
    fn luminance(color: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    /// Small text has WCAG's minimum contrast of 4.5 on every background, in light and dark themes.
    #[test]
    fn text_can_be_read_on_its_ground() {
        let themes: Vec<&str> = STYLE.split("--paper:").skip(1).collect();
        assert_eq!(themes.len(), 3);
        for theme in themes.iter().map(|rest| format!("--paper:{rest}")) {
            let color = |name: &str| {
                let at = theme.find(&format!("--{name}: #")).unwrap() + name.len() + 4;
                luminance(&theme[at..at + 7])
            };
            for (text, ground) in [
                ("ink", "track"),
                ("faint", "paper"),
                ("faint", "card"),
                ("faint", "track"),
                ("accent", "paper"),
            ] {
                let (a, b) = (color(text), color(ground));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2}");
            }
        }
    }

    #[test]
    fn data_cannot_break_out_of_its_element() {
        let page = page("a < b", r#"{"title":"</script><!--<script>"}"#);
        assert!(page.contains("<title>a &lt; b</title>"));
        assert!(page.contains(r#"{"title":"\u003c/script>\u003c!--\u003cscript>"}"#));
        assert_eq!(page.matches("</script>").count(), 2);
    }

    #[test]
    fn the_page_fetches_nothing() {
        let page = page("t", "{}");
        for forbidden in
            ["http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "import(", "{{"]
        {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(!script().contains("</script"), "the script must not end its own element");
    }
}
