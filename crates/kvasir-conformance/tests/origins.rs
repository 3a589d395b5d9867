//! Link checker: every file and test named in `docs/origins.md` must exist.

/// Link text and path of all links to files of this repository.
fn links(page: &str) -> Vec<(&str, &str)> {
    let pieces = page.split("](../").collect::<Vec<_>>();
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
    let root = kvasir_testkit::paths::repository();
    let page = std::fs::read_to_string(root.join("docs/origins.md")).unwrap();
    let links = links(&page);
    assert!(links.len() > 300, "{} links", links.len());
    assert_eq!(links.len(), page.matches("](").count(), "a link that is not to a file of this repository");
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

/// Every table row names an implementation and a test, or says that the feature is later or out of
/// scope.
#[test]
fn every_row_has_an_answer() {
    let root = kvasir_testkit::paths::repository();
    let page = std::fs::read_to_string(root.join("docs/origins.md")).unwrap();
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| named there")) {
        let row = row.replace("\\|", "/");
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        assert!(!cells[1].is_empty() && !cells[2].is_empty(), "{row}");
        let is_open = cells[2].contains("later") || cells[2].contains("outside the scope");
        assert!(is_open || !cells[3].is_empty(), "nowhere, and not later: {row}");
        assert!(is_open || !cells[4].is_empty(), "without a test, and not later: {row}");
    }
}
