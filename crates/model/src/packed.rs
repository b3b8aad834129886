//! Texts and numbers in few bytes, for what a process keeps many of and seldom needs. Nothing else reads them: they
//! are no format.

/// Appends a text behind its length.
pub fn pack_text(text: &str, bytes: &mut Vec<u8>) {
    pack_number(text.len(), bytes);
    bytes.extend_from_slice(text.as_bytes());
}

/// Takes a text from the front; `None` if there is none.
pub fn take_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let length = take_number(bytes)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

/// Appends a number: seven bits a byte, the lowest first; the eighth says that more follow.
pub fn pack_number(mut number: usize, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front; `None` if there is none.
pub fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let (mut number, mut shift) = (0_usize, 0);
    loop {
        let byte = take_byte(bytes)?;
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte < 0x80 {
            return Some(number);
        }
    }
}

/// Takes a byte from the front; `None` if there is none.
pub fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_come_back() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 1 << 40, usize::MAX] {
            let mut bytes = Vec::new();
            pack_number(number, &mut bytes);
            let mut rest = bytes.as_slice();
            assert_eq!((take_number(&mut rest), rest.is_empty()), (Some(number), true));
        }
        let text = "x".repeat(300);
        let mut bytes = Vec::new();
        pack_text(&text, &mut bytes);
        assert_eq!(take_text(&mut bytes.as_slice()), Some(text.as_str()));
        assert_eq!(take_text(&mut &bytes[..200]), None);
    }

    #[test]
    fn a_number_that_never_ends_is_none() {
        assert_eq!(take_number(&mut [0xff; 20].as_slice()), None);
        assert_eq!(take_number(&mut [0x80].as_slice()), None);
    }
}
