//! Checks `origins.md`: every file and test that it names exists, and every row says how a user
//! reaches the mechanism.

use std::path::Path;

/// Link text and path of all links.
fn links(page: &str) -> Vec<(&str, &str)> {
    let pieces = page.split("](").collect::<Vec<_>>();
    let pairs = pieces.windows(2).filter_map(|two| {
        let (_, text) = two[0].rsplit_once('[')?;
        let (path, _) = two[1].split_once(')')?;
        Some((text.trim_matches('`'), path))
    });
    pairs.collect()
}

/// A plain lower-case name refers to a test; anything else refers to a file.
fn is_test(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[test]
fn every_link_of_the_origins_page_is_alive() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("origins.md")).unwrap();
    let links = links(&page);
    assert!(links.len() > 300, "{} links", links.len());
    let mut dead = Vec::new();
    for (text, path) in links {
        match std::fs::read_to_string(root.join(path)) {
            Err(_) => dead.push(format!("no file {path}")),
            Ok(source) if is_test(text) => {
                let is_there = source.contains("#[test]") && source.contains(&format!("fn {text}("));
                if !is_there {
                    dead.push(format!("no test {text} in {path}"));
                }
            }
            Ok(_) => {}
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Every table has the column `reached by`. A row that a command or the library reaches links an existing
/// file; a row whose mechanism is in the tree names an implementation and a test.
#[test]
fn every_row_says_how_it_is_reached() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("origins.md")).unwrap();
    let mut wrong = Vec::new();
    for table in page.split("\n\n").filter(|part| part.starts_with('|')) {
        let mut lines = table.lines();
        let header = lines.next();
        if header != Some("| named there | here | reached by | where | test |") {
            wrong.push(format!("another header: {header:?}"));
        }
        for line in lines.skip(1) {
            let row = line.replace("\\|", "/");
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let &["", name, here, reached, file, test, ""] = &cells[..] else {
                wrong.push(format!("{} cells: {line}", cells.len()));
                continue;
            };
            let is_file = |(text, path): &(&str, &str)| !is_test(text) && root.join(path).is_file();
            let is_right = match reached {
                "command" | "library" => links(file).iter().any(is_file) && !test.is_empty(),
                "simulator" | "replay" | "test" => !file.is_empty() && !test.is_empty(),
                "later" => here.contains("later"),
                "—" => here.contains("outside the scope"),
                _ => false,
            };
            if name.is_empty() || here.is_empty() || !is_right {
                wrong.push(format!("`{reached}` needs more: {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
