/// What somebody did at the keyboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// A pasted text, as one.
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
    /// Something that means nothing here.
    Other,
}

const ESCAPE: u8 = 0x1b;

/// Ends a paste.
const PASTE_END: &[u8] = b"\x1b[201~";

/// Bytes of a paste that are taken at most.
const MAX_PASTE: usize = 1 << 20;

/// Reads one key that begins with `first`. `more` gives the next byte, or none if none comes soon.
pub(super) fn decode(first: u8, more: &mut dyn FnMut() -> Option<u8>) -> Key {
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

fn character(first: u8, more: &mut dyn FnMut() -> Option<u8>) -> Key {
    let length = match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    let mut bytes = vec![first];
    bytes.extend((1..length).map_while(|_| more()));
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    text.chars().next().map_or(Key::Other, Key::Char)
}

fn escaped(more: &mut dyn FnMut() -> Option<u8>) -> Key {
    match more() {
        Some(b'\r' | b'\n') => Key::NewLine,
        Some(b'b') => Key::WordLeft,
        Some(b'f') => Key::WordRight,
        Some(0x7f) => Key::DeleteWord,
        Some(b'[') => sequence(more),
        Some(b'O') => more().map_or(Key::Other, |letter| arrow(letter, false)),
        _ => Key::Other,
    }
}

/// What follows `ESC [`: numbers, then a letter or `~`.
fn sequence(more: &mut dyn FnMut() -> Option<u8>) -> Key {
    let mut numbers = String::new();
    loop {
        match more() {
            Some(byte @ (b'0'..=b'9' | b';')) if numbers.len() < 16 => numbers.push(char::from(byte)),
            Some(b'~') => return numbered(&numbers, more),
            // Terminals that tell modified keys apart say 13;2u for Shift-Enter.
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

fn numbered(numbers: &str, more: &mut dyn FnMut() -> Option<u8>) -> Key {
    match numbers {
        "1" | "7" => Key::Home,
        "4" | "8" => Key::End,
        "3" => Key::Delete,
        "200" => pasted(more),
        _ if numbers.starts_with("27;") && numbers.ends_with(";13") => Key::NewLine,
        _ => Key::Other,
    }
}

fn pasted(more: &mut dyn FnMut() -> Option<u8>) -> Key {
    let mut bytes = Vec::new();
    while !bytes.ends_with(PASTE_END) && bytes.len() < MAX_PASTE {
        let Some(byte) = more() else { break };
        bytes.push(byte);
    }
    let text = bytes.strip_suffix(PASTE_END).unwrap_or(&bytes);
    let text = String::from_utf8_lossy(text).replace("\r\n", "\n").replace('\r', "\n");
    Key::Paste(text.chars().filter(|c| *c == '\n' || !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut bytes = bytes.iter().copied();
        let mut keys = Vec::new();
        while let Some(first) = bytes.next() {
            keys.push(decode(first, &mut || bytes.next()));
        }
        keys
    }

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(keys("aé€😀".as_bytes()), "aé€😀".chars().map(Key::Char).collect::<Vec<_>>());
        assert_eq!(
            keys(b"\x1b[A\x1b[1;5D\x1bOC\x1b[3~\x1b\r\x1b[13;2u\r"),
            [Key::Up, Key::WordLeft, Key::Right, Key::Delete, Key::NewLine, Key::NewLine, Key::Enter]
        );
        assert_eq!(keys(b"\x1b[200~a\r\nb\x1b[31m\x1b[201~\r"), [Key::Paste("a\nb[31m".into()), Key::Enter]);
        assert_eq!(keys(b"\x1b"), [Key::Other]);
        assert_eq!(keys(b"\x1b[999"), [Key::Other]);
        assert_eq!(keys(b"\xff\xc3"), [Key::Other, Key::Other]);
    }
}
