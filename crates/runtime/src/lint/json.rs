//! Positions of members in a JSON text.

use std::collections::BTreeMap;

/// Line and column of each member, both counted from 1.
#[derive(Debug, Default)]
pub(super) struct Positions {
    members: BTreeMap<String, (usize, usize)>,
    repeated: Vec<String>,
}

/// Scans a text that is known to be valid JSON; the parser has limited its depth.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    found: Positions,
    counted: Counted,
}

/// The position up to which lines and columns are counted: members come in the order of the text,
/// so each byte is counted once, however long a line is.
struct Counted {
    to: usize,
    line: usize,
    column: usize,
}

/// Some editors write it at the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A parser's error, with its usual cause.
pub(super) fn explain(error: &serde_json::Error, bytes: &[u8]) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    let line = bytes.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let line = line.trim_start();
    let hint = if bytes.trim_ascii().is_empty() {
        ": the file is empty"
    } else if bytes.starts_with(BYTE_ORDER_MARK) {
        ": the file begins with a byte order mark, which JSON does not have"
    } else if line.starts_with("//") || line.starts_with('#') || line.starts_with("/*") {
        ": JSON has no comments"
    } else if what == "trailing characters" {
        ": there is something behind the end of the object"
    } else {
        ""
    };
    format!("this is not JSON: {what}{hint}")
}

/// A member's path.
pub(super) fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") }
}

// === impl Positions ===

impl Positions {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let counted = Counted { to: 0, line: 1, column: 1 };
        let mut scanner = Scanner { bytes, at: 0, found: Self::default(), counted };
        scanner.value("");
        scanner.found
    }

    /// The position of a member, or of the nearest one around it.
    pub(super) fn position_of(&self, at: &str) -> Option<(usize, usize)> {
        let mut at = at;
        loop {
            if let Some(position) = self.members.get(at) {
                return Some(*position);
            }
            at = &at[..at.rfind(['.', '['])?];
        }
    }

    /// Members that occur more than once.
    pub(super) fn repeated(&self) -> Vec<String> {
        self.repeated.clone()
    }
}

// === impl Scanner ===

impl<'a> Scanner<'a> {
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn value(&mut self, path: &str) {
        match self.peek() {
            Some(b'{') => self.members(path),
            Some(b'[') => self.elements(path),
            Some(b'"') => drop(self.text()),
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                while self.bytes.get(self.at).is_some_and(|byte| !ends(byte)) {
                    self.at += 1;
                }
            }
        }
    }

    fn members(&mut self, path: &str) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    let position = self.position();
                    let member = join(path, &self.text());
                    if self.found.members.insert(member.clone(), position).is_some() {
                        self.found.repeated.push(member.clone());
                    }
                    self.peek();
                    self.at += 1;
                    self.value(&member);
                }
                b'}' => {
                    self.at += 1;
                    return;
                }
                _ => self.at += 1,
            }
        }
    }

    fn elements(&mut self, path: &str) {
        self.at += 1;
        let mut index = 0;
        while let Some(byte) = self.peek() {
            match byte {
                b']' => {
                    self.at += 1;
                    return;
                }
                b',' => self.at += 1,
                _ => {
                    let element = format!("{path}[{index}]");
                    let position = self.position();
                    self.found.members.insert(element.clone(), position);
                    self.value(&element);
                    index += 1;
                }
            }
        }
    }

    /// The string that starts here.
    fn text(&mut self) -> String {
        let begin = self.at;
        self.at += 1;
        while let Some(byte) = self.bytes.get(self.at) {
            self.at += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if *byte == b'"' {
                break;
            }
        }
        serde_json::from_slice(self.passed(begin)).unwrap_or_default()
    }

    /// What lies between there and here; here is behind the end where a string ends with a backslash.
    fn passed(&self, begin: usize) -> &'a [u8] {
        self.bytes.get(begin..self.at.min(self.bytes.len())).unwrap_or_default()
    }

    fn position(&mut self) -> (usize, usize) {
        let passed = self.passed(self.counted.to);
        let Counted { to, line, column } = &mut self.counted;
        for byte in passed {
            match byte {
                b'\n' => (*line, *column) = (*line + 1, 1),
                // A continuation byte of a character that was counted at its first byte.
                0x80..=0xbf => {}
                _ => *column += 1,
            }
        }
        *to = self.at;
        (*line, *column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_the_line_and_column_of_their_key() {
        let text = "{\n  \"a\": [1, {\"b\\\"c\": \"x\\\\\"}],\n\t\"é\": {\"d\": null}, \"e\": -1.5e3}";
        let positions = Positions::new(text.as_bytes());
        assert_eq!(positions.position_of("a"), Some((2, 3)));
        assert_eq!(positions.position_of("a[1]"), Some((2, 12)));
        assert_eq!(positions.position_of("a[1].b\"c"), Some((2, 13)));
        assert_eq!(positions.position_of("é.d"), Some((3, 8)));
        assert_eq!(positions.position_of("e"), Some((3, 20)));
        assert_eq!(positions.position_of("a[1].nosuch.deeper"), Some((2, 12)), "the nearest around it");
        assert_eq!(positions.position_of("nosuch"), None);
    }

    #[test]
    fn a_file_in_one_line_is_counted_once_and_not_once_a_member() {
        const MEMBERS: usize = 200_000;
        let text = format!("[{}]", vec!["1"; MEMBERS].join(","));
        let positions = Positions::new(text.as_bytes());
        // Counting each column from the start of the line would take 40,000,000,000 steps here.
        assert_eq!(positions.position_of(&format!("[{}]", MEMBERS - 1)), Some((1, 2 * MEMBERS)));
    }

    #[test]
    fn any_json_is_read_to_its_end() {
        for text in
            ["{}", "[]", "7", "\"\\\\\"", "[[],[{}]]", "{\"a\":{\"a\":[]},\"a\":\"}\"}", " [ 1 , 2 ] "]
        {
            Positions::new(text.as_bytes());
        }
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        assert!(Positions::new(deep.as_bytes()).position_of("[0][0][0]").is_some());
        assert_eq!(Positions::new(br#"{"a":1,"b":{"a":1},"a":2}"#).repeated(), ["a"]);
    }
}
