//! Base64 with the standard alphabet and padding: how the agent's protocol and Go's result cache carry raw bytes.

/// Why text is no base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid base64")]
pub struct Base64Error;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|index| chunk.get(index).copied().unwrap_or_default());
        let word = u32::from_be_bytes([0, a, b, c]);
        for position in 0..4 {
            let sextet = (word >> (18 - 6 * position)) & 0x3f;
            let missing = position as usize > chunk.len();
            let letter = ALPHABET.get(sextet as usize).filter(|_| !missing);
            text.push(letter.map_or('=', |letter| char::from(*letter)));
        }
    }
    text
}

/// Decodes `text`; only what [`encode`] would have written is accepted.
pub fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    let (quads, rest) = text.as_bytes().as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Base64Error);
    }
    let mut bytes = Vec::with_capacity(quads.len() * 3);
    for (index, quad) in quads.iter().enumerate() {
        let padding = quad.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && index + 1 < quads.len()) {
            return Err(Base64Error);
        }
        let mut word = 0;
        for byte in quad.iter().take(4 - padding) {
            word = word << 6 | sextet(*byte)?;
        }
        word <<= 6 * padding;
        let [_, decoded @ ..] = u32::to_be_bytes(word);
        let (kept, padded) = decoded.split_at(3 - padding);
        if padded.iter().any(|byte| *byte != 0) {
            return Err(Base64Error);
        }
        bytes.extend_from_slice(kept);
    }
    Ok(bytes)
}

fn sextet(byte: u8) -> Result<u32, Base64Error> {
    Ok(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return Err(Base64Error),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text), Ok(bytes.as_bytes().to_vec()));
        }
    }

    #[test]
    fn text_that_nobody_encodes_is_refused() {
        for bad in ["Z", "Zg", "Zg=", "Zh==", "Z===", "====", "Zg==Zg==", "Zm9\n", "Zm-v", "Zm9=", "Ã©Ã©"]
        {
            assert_eq!(decode(bad), Err(Base64Error), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn bytes_survive_a_round_trip(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }
    }
}
