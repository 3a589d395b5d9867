//! Decodes terminal input bytes into keys: control characters, escape sequences, UTF-8 and
//! bracketed paste.

use std::collections::VecDeque;

/// A key press or paste.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// A bracketed paste as a whole.
    Paste(String),
    Enter,
    NewLine,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    WordLeft,
    WordRight,
    DeleteWord,
    DeleteToStart,
    DeleteToEnd,
    Clear,
    Interrupt,
    EndOfInput,
    /// A key without function.
    Other,
}

const ESCAPE: u8 = 0x1b;

/// End marker of a bracketed paste.
const PASTE_END: &[u8] = b"\x1b[201~";

/// Maximum size of a paste in bytes; the rest is discarded.
const MAX_PASTE: usize = 1 << 20;

/// How long to wait for the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It belongs to the same key: a short timeout.
    Soon,
    /// It belongs to a paste, which may stall: no timeout.
    Long,
}

/// Returns the next byte, or `None` on timeout.
type More<'a> = &'a mut dyn FnMut(Wait) -> Option<u8>;

/// Decodes a key that begins with `first`.
pub(crate) fn decode(first: u8, more: More<'_>) -> Key {
    match first {
        b'\r' => Key::Enter,
        b'\n' => Key::NewLine,
        b'\t' => Key::Tab,
        0x7f | 0x08 => Key::Backspace,
        0x01 => Key::Home,
        0x02 => Key::Left,
        0x03 => Key::Interrupt,
        0x04 => Key::EndOfInput,
        0x05 => Key::End,
        0x06 => Key::Right,
        0x0b => Key::DeleteToEnd,
        0x0c => Key::Clear,
        0x0e => Key::Down,
        0x10 => Key::Up,
        0x15 => Key::DeleteToStart,
        0x17 => Key::DeleteWord,
        ESCAPE => escaped(more),
        0x00..=0x1f => Key::Other,
        _ => character(first, more),
    }
}

fn character(first: u8, more: More<'_>) -> Key {
    let length = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    let mut bytes = vec![first];
    bytes.extend((1..length).map_while(|_| more(Wait::Soon)));
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    text.chars().next().map_or(Key::Other, Key::Char)
}

fn escaped(more: More<'_>) -> Key {
    match more(Wait::Soon) {
        Some(b'\r' | b'\n') => Key::NewLine,
        Some(b'b') => Key::WordLeft,
        Some(b'f') => Key::WordRight,
        Some(0x7f) => Key::DeleteWord,
        Some(b'[') => sequence(more),
        Some(b'O') => more(Wait::Soon).map_or(Key::Other, |letter| arrow(letter, false)),
        _ => Key::Other,
    }
}

/// Decodes a CSI sequence after `ESC [`: numbers, then a letter or `~`.
fn sequence(more: More<'_>) -> Key {
    let mut numbers = String::new();
    loop {
        match more(Wait::Soon) {
            Some(byte @ (b'0'..=b'9' | b';')) if numbers.len() < 16 => numbers.push(char::from(byte)),
            Some(b'~') => return numbered(&numbers, more),
            // Terminals with modified-key reporting send 13;2u for Shift-Enter.
            Some(b'u') if numbers.starts_with("13;") => return Key::NewLine,
            Some(letter) => return arrow(letter, numbers.contains(';')),
            None => return Key::Other,
        }
    }
}

fn arrow(letter: u8, modified: bool) -> Key {
    match (letter, modified) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', false) => Key::Right,
        (b'C', true) => Key::WordRight,
        (b'D', false) => Key::Left,
        (b'D', true) => Key::WordLeft,
        (b'H', _) => Key::Home,
        (b'F', _) => Key::End,
        _ => Key::Other,
    }
}

fn numbered(numbers: &str, more: More<'_>) -> Key {
    match numbers {
        "1" | "7" => Key::Home,
        "4" | "8" => Key::End,
        "3" => Key::Delete,
        "200" => pasted(more),
        _ if numbers.starts_with("27;") && numbers.ends_with(";13") => Key::NewLine,
        _ => Key::Other,
    }
}

fn pasted(more: More<'_>) -> Key {
    let mut bytes = Vec::new();
    let mut last = VecDeque::with_capacity(PASTE_END.len());
    // Excess bytes are consumed and discarded: as keys they would submit input.
    while !last.iter().eq(PASTE_END) {
        let Some(byte) = more(Wait::Long) else {
            bytes.extend(last);
            break;
        };
        let before = if last.len() == PASTE_END.len() { last.pop_front() } else { None };
        bytes.extend(before.filter(|_| bytes.len() < MAX_PASTE));
        last.push_back(byte);
    }
    let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").replace('\r', "\n");
    Key::Paste(text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut bytes = bytes.iter().copied();
        let mut keys = Vec::new();
        while let Some(first) = bytes.next() {
            keys.push(decode(first, &mut |_| bytes.next()));
        }
        keys
    }

    #[test]
    fn escape_sequences_decode_to_keys() {
        assert_eq!(keys("aé€😀".as_bytes()), "aé€😀".chars().map(Key::Char).collect::<Vec<_>>());
        assert_eq!(
            keys(b"\x1b[A\x1b[1;5D\x1bOC\x1b[3~\x1b\r\x1b[13;2u\r"),
            [Key::Up, Key::WordLeft, Key::Right, Key::Delete, Key::NewLine, Key::NewLine, Key::Enter]
        );
        assert_eq!(
            keys(b"\x1b[200~a\r\n\tb\x1b[31m\x1b[201~\r"),
            [Key::Paste("a\n\tb[31m".into()), Key::Enter]
        );
        assert_eq!(keys(b"\x1b[200~a\x1b[20"), [Key::Paste("a[20".into())]);
        assert_eq!(keys(b"\x1b"), [Key::Other]);
        assert_eq!(keys(b"\x1b[999"), [Key::Other]);
        assert_eq!(keys(b"\xff\xc3"), [Key::Other, Key::Other]);
    }

    #[test]
    fn a_long_paste_is_one_key_and_bounded() {
        let mut long = b"\x1b[200~".to_vec();
        long.extend(vec![b'x'; MAX_PASTE + 1000]);
        long.extend(b"\ry\x1b[201~z");
        let [Key::Paste(text), Key::Char('z')] = &keys(&long)[..] else { panic!("its end is its own") };
        assert_eq!(text.len(), MAX_PASTE);
        let mut bytes = b"[200~ab\x1b[201~".iter().copied();
        let mut waits = Vec::new();
        decode(ESCAPE, &mut |wait| {
            waits.push(wait);
            bytes.next()
        });
        assert_eq!(waits, [vec![Wait::Soon; 5], vec![Wait::Long; 8]].concat());
    }
}
