//! Hold-back buffering for streaming parsers: emits text up to a marker, and keeps a suffix that
//! may be the start of one.

/// Length of the longest suffix of `text` that is a proper prefix of `mark`. It must be held back
/// until more text decides.
pub(crate) fn possible_start(text: &str, mark: &str) -> usize {
    let max = text.len().min(mark.len().saturating_sub(1));
    let fits = |n: &usize| {
        text.is_char_boundary(text.len() - n)
            && mark.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
    };
    (1..=max).rev().find(fits).unwrap_or(0)
}

/// Splits off the text before the first of `marks`, and returns that marker: the longest where
/// several match at one position. The marker stays in `text`. Without a match, splits off all but a
/// suffix that may be the start of a marker.
pub(crate) fn take_to_marker<'m>(
    text: &mut String,
    marks: impl Iterator<Item = &'m str> + Clone,
) -> (String, Option<&'m str>) {
    let found = marks.clone().filter_map(|mark| Some((text.find(mark)?, mark)));
    match found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len()))) {
        Some((at, mark)) => (take(text, at), Some(mark)),
        None => {
            let hold = marks.map(|mark| possible_start(text, mark)).max().unwrap_or(0);
            let sure = text.len() - hold;
            (take(text, sure), None)
        }
    }
}

/// Splits off the first `n` bytes of `text`.
pub(crate) fn take(text: &mut String, n: usize) -> String {
    let rest = text.split_off(n);
    std::mem::replace(text, rest)
}
