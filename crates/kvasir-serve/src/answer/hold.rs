/// Length of the longest end of `text` with which `mark` could begin. It must be held back until more text decides.
pub(super) fn possible_start(text: &str, mark: &str) -> usize {
    let most = text.len().min(mark.len().saturating_sub(1));
    let fits = |n: &usize| {
        text.is_char_boundary(text.len() - n)
            && mark.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
    };
    (1..=most).rev().find(fits).unwrap_or(0)
}

/// Takes the first `n` bytes off `text`.
pub(super) fn take(text: &mut String, n: usize) -> String {
    let rest = text.split_off(n);
    std::mem::replace(text, rest)
}
