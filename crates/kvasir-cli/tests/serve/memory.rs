//! Memory bounds under hostile bodies: limited peak, and returned to the system afterwards.

use crate::server::{CHAT, JSON, Server};
use std::{fs, thread, time::Duration};

/// Resident set size (RSS) of a process in bytes.
pub(crate) fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// Peak RSS of a process in bytes.
pub(crate) fn peak(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// Sends a body to a path, `each` times over eight connections; returns the growth of RSS afterwards
/// and at its peak.
fn grown(name: &str, path: &str, body: &str, each: usize, status: u16) -> (u64, u64) {
    let server = Server::start(name, &[]);
    let process = server.process.id();
    // One-time allocations of the first request are no leak.
    assert_eq!(server.send("POST", path, JSON, "{}").0, 400);
    let before = resident(process);
    thread::scope(|scope| {
        for _ in 0..8 {
            let send = || {
                (0..each).for_each(|_| {
                    let got = server.send("POST", path, JSON, body).0;
                    assert!(got == status || got == 503, "{got}");
                })
            };
            scope.spawn(send);
        }
    });
    // Freed memory is returned within about ten seconds.
    for _ in 0..300 {
        if resident(process) < before + (50 << 20) {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    (resident(process).saturating_sub(before), peak(process).saturating_sub(before))
}

fn objects(count: usize) -> String {
    vec![r#"{"a":1}"#; count].join(",")
}

#[test]
fn unknown_fields_cost_no_more_than_their_text() {
    let junk =
        format!(r#"{{"messages": [{{"role": "king", "content": "x", "junk": [{}]}}]}}"#, objects(990_000));
    let (after, peak) = grown("memory-unknown", CHAT, &junk, 8, 400);
    assert!(after < 50 << 20, "{} MiB stay", after >> 20);
    assert!(peak < 300 << 20, "{} MiB at most", peak >> 20);
}

#[test]
fn oversized_known_fields_are_refused_within_the_budget() {
    let tools = format!(r#"{{"tools": [{}], "messages": []}}"#, objects(990_000));
    let (after, peak) = grown("memory-known", CHAT, &tools, 8, 400);
    assert!(after < 50 << 20, "{} MiB stay", after >> 20);
    // The budget of 512 MiB, the slack of growing lists, and pages that are not given back yet.
    assert!(peak < 1200 << 20, "{} MiB at most", peak >> 20);
}

#[test]
fn pieces_of_a_text_are_written_without_a_tree_of_values() {
    let text = "! ".repeat(500 << 10);
    let body = format!(r#"{{"prompt": "{text}", "with_pieces": true, "return_token_strs": true}}"#);
    let (after, peak) = grown("memory-pieces", "/tokenize", &body, 1, 200);
    assert!(after < 100 << 20, "{} MiB stay", after >> 20);
    // One large tokenization of a client runs at a time; the answers have 20 MB each.
    assert!(peak < 800 << 20, "{} MiB at most", peak >> 20);
}
