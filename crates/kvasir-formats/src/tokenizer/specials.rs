use std::collections::HashMap;

/// Tokens that are found in text as a whole before anything else is looked at: the leftmost first, of those at one
/// place the longest.
#[derive(Debug, Default)]
pub(super) struct Specials {
    by_first: HashMap<u8, Vec<(Box<str>, u32)>>,
}

/// A stretch of text, or a token found in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Token(u32),
}

impl Specials {
    pub(super) fn new(tokens: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut by_first: HashMap<u8, Vec<(Box<str>, u32)>> = HashMap::new();
        for (text, id) in tokens {
            if let Some(&first) = text.as_bytes().first() {
                by_first.entry(first).or_default().push((text.into(), id));
            }
        }
        for list in by_first.values_mut() {
            list.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        }
        Self { by_first }
    }

    /// Cuts text into stretches and tokens.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let (mut out, mut from, mut at) = (Vec::new(), 0, 0);
        while let Some(&byte) = text.as_bytes().get(at) {
            let here = self.by_first.get(&byte).and_then(|list| {
                list.iter().find(|(token, _)| text.as_bytes()[at..].starts_with(token.as_bytes()))
            });
            match here {
                Some((token, id)) => {
                    if from < at {
                        out.push(Piece::Text(&text[from..at]));
                    }
                    out.push(Piece::Token(*id));
                    at += token.len();
                    from = at;
                }
                None => at += 1,
            }
        }
        if from < text.len() {
            out.push(Piece::Text(&text[from..]));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_at_the_leftmost_place_wins() {
        let specials = Specials::new([("<a>".into(), 1), ("<a><b>".into(), 2), ("é".into(), 3)]);
        let got = specials.split("x<a><b>y<a>é<");
        let expected = [
            Piece::Text("x"),
            Piece::Token(2),
            Piece::Text("y"),
            Piece::Token(1),
            Piece::Token(3),
            Piece::Text("<"),
        ];
        assert_eq!(got, expected);
    }
}
