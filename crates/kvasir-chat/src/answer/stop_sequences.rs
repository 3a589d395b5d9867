//! Streaming stop-sequence filter: cuts text at the first stop string and holds back a possible
//! prefix of one.

use crate::scan::hold_back::take_to_marker;

/// Ends a text at the first of several stop sequences, which is not part of the output.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    emitted: usize,
    stopped: Option<(usize, String)>,
}

impl StopFilter {
    /// A filter for these stop sequences.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, ..Self::default() }
    }

    /// Feeds more text; returns what certainly precedes any stop sequence.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let (sure, stop) = take_to_marker(&mut self.held, self.stops.iter().map(String::as_str));
        self.emitted += sure.len();
        if let Some(stop) = stop {
            self.stopped = Some((self.emitted, stop.to_owned()));
            self.held.clear();
        }
        sure
    }

    /// Passes text through without matching stop sequences. Must precede any `push`.
    pub fn pass(&mut self, text: &str) -> String {
        self.emitted += text.len();
        text.to_owned()
    }

    /// Bytes emitted so far.
    pub fn emitted(&self) -> usize {
        self.emitted
    }

    /// Ends the text here, for a reason that leaves no sequence to cut; returns what was held back.
    pub fn stop_here(&mut self) -> String {
        let rest = self.finish();
        self.stopped = Some((self.emitted, String::new()));
        rest
    }

    /// Ends the text and flushes what was held back.
    pub fn finish(&mut self) -> String {
        self.emitted += self.held.len();
        std::mem::take(&mut self.held)
    }

    /// Byte offset of the cut, and the stop sequence that caused it.
    pub fn stopped(&self) -> Option<(usize, &str)> {
        self.stopped.as_ref().map(|(at, stop)| (*at, stop.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(text: &str, stops: &[&str], cut: &[usize]) -> (String, Option<usize>) {
        let mut filter = StopFilter::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        let mut from = 0;
        for &to in cut.iter().chain([&text.len()]) {
            out += &filter.push(&text[from..to]);
            from = to;
        }
        out += &filter.finish();
        (out, filter.stopped().map(|(at, _)| at))
    }

    #[test]
    fn every_split_gives_the_same() {
        let text = "ab ENEND cd END ef";
        let whole = in_pieces(text, &["END", "cd E"], &[]);
        assert_eq!(whole, ("ab EN".into(), Some(5)));
        for a in 0..=text.len() {
            for b in a..=text.len() {
                assert_eq!(in_pieces(text, &["END", "cd E"], &[a, b]), whole);
            }
        }
    }

    #[test]
    fn unmatched_stop_prefixes_are_released() {
        assert_eq!(in_pieces("ab EN", &["END"], &[4]), ("ab EN".into(), None));
        let mut filter = StopFilter::new(vec!["xyz".into()]);
        assert_eq!(filter.push("hello x"), "hello ");
        assert_eq!(filter.push("y!"), "xy!");
    }
}
