//! Runs the saved fuzz corpus of the server through the fuzz entry points, as regression tests.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

#[path = "../../../fuzz/serve_entry_points.rs"]
mod serve_entry_points;

use kvasir_testkit::paths;
use std::fs;
use std::time::{Duration, Instant};

/// Time limit of an input.
const LONGEST: Duration = Duration::from_secs(5);

fn corpus(name: &str, least: usize, run: fn(&[u8])) {
    for file in paths::fuzz_corpus(name, least) {
        let began = Instant::now();
        run(&fs::read(&file).unwrap());
        assert!(began.elapsed() < LONGEST, "{}: {:?}", file.display(), began.elapsed());
    }
}

#[test]
fn request_bodies() {
    corpus("body", 15, serve_entry_points::body);
}

#[test]
fn schemas() {
    corpus("schema", 10, serve_entry_points::schema);
}

#[test]
fn grammars() {
    corpus("grammar", 10, serve_entry_points::grammar);
}

#[test]
fn regular_expressions() {
    corpus("regex", 12, serve_entry_points::regex);
}
