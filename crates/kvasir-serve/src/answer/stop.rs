use super::hold::take_to_mark;

/// Ends a text at the first of several stop texts, which is not part of it.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    given: usize,
    stopped: Option<(usize, String)>,
}

impl StopFilter {
    /// For these stop texts.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, ..Self::default() }
    }

    /// Takes more text and returns what certainly belongs to the answer.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let (sure, stop) = take_to_mark(&mut self.held, self.stops.iter().map(String::as_str));
        self.given += sure.len();
        if let Some(stop) = stop {
            self.stopped = Some((self.given, stop.to_owned()));
            self.held.clear();
        }
        sure
    }

    /// Takes text in which no stop is looked for; nothing else has been taken before.
    pub fn pass(&mut self, text: &str) -> String {
        self.given += text.len();
        text.to_owned()
    }

    /// How much has been given out, in bytes.
    pub fn given(&self) -> usize {
        self.given
    }

    /// The text has ended: gives out what was held back.
    pub fn finish(&mut self) -> String {
        self.given += self.held.len();
        std::mem::take(&mut self.held)
    }

    /// Where the text was cut, in bytes, and by which stop text.
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
    fn a_stop_that_never_comes_costs_nothing() {
        assert_eq!(in_pieces("ab EN", &["END"], &[4]), ("ab EN".into(), None));
        let mut filter = StopFilter::new(vec!["xyz".into()]);
        assert_eq!(filter.push("hello x"), "hello ");
        assert_eq!(filter.push("y!"), "xy!");
    }
}
