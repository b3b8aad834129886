//! User data: `nft`'s private data of objects, as entries of a type byte, a length byte and a
//! value. Russet stores comments there, which `nft list` shows.

use crate::kernel::{UDATA_COMMENT, UDATA_SET_COMMENT, UDATA_SET_DATA_BYTE_ORDER, UDATA_SET_KEY_BYTE_ORDER};

/// The longest comment that `nft` accepts, without its NUL.
pub(crate) const COMMENT_MAX_BYTES: usize = 127;
/// `nft`'s number for host byte order, without which it prints and sorts marks in the wrong byte
/// order.
const HOST_ENDIAN: u32 = 1;

/// The user data of a table, chain, rule or element with a comment.
pub(crate) fn comment(text: &str) -> Vec<u8> {
    let mut data = Vec::new();
    push_text(&mut data, UDATA_COMMENT, text);
    data
}

/// The user data of a set whose keys or values are in host byte order.
pub(crate) fn set(host_order_key: bool, host_order_data: bool, text: Option<&str>) -> Vec<u8> {
    let mut data = Vec::new();
    let orders = [(host_order_key, UDATA_SET_KEY_BYTE_ORDER), (host_order_data, UDATA_SET_DATA_BYTE_ORDER)];
    for (_, kind) in orders.into_iter().filter(|(host_order, _)| *host_order) {
        data.extend_from_slice(&[kind, 4]);
        data.extend_from_slice(&HOST_ENDIAN.to_ne_bytes());
    }
    if let Some(text) = text {
        push_text(&mut data, UDATA_SET_COMMENT, text);
    }
    data
}

/// The comment in the user data of a table, chain, rule or element.
pub(crate) fn comment_of(data: &[u8]) -> Option<String> {
    text_of(data, UDATA_COMMENT)
}

/// The comment in the user data of a set.
pub(crate) fn set_comment_of(data: &[u8]) -> Option<String> {
    text_of(data, UDATA_SET_COMMENT)
}

fn push_text(data: &mut Vec<u8>, kind: u8, text: &str) {
    // The transaction has refused longer ones.
    let text = text.as_bytes().get(..COMMENT_MAX_BYTES).unwrap_or(text.as_bytes());
    data.push(kind);
    data.push(text.len() as u8 + 1);
    data.extend_from_slice(text);
    data.push(0);
}

fn text_of(mut data: &[u8], wanted: u8) -> Option<String> {
    while let [kind, len, rest @ ..] = data {
        let (value, next) = rest.split_at_checked(usize::from(*len))?;
        if *kind == wanted {
            let text = value.split(|byte| *byte == 0).next()?;
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        data = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_bytes_with_a_nul_and_survives_a_round_trip() {
        let data = comment("pods");
        assert_eq!(data, [0, 5, b'p', b'o', b'd', b's', 0]);
        assert_eq!(comment_of(&data).as_deref(), Some("pods"));
    }

    #[test]
    fn a_sets_comment_follows_its_byte_order() {
        let data = set(true, false, Some("x"));
        assert_eq!(data[..2], [0, 4]);
        assert_eq!(set_comment_of(&data).as_deref(), Some("x"));
        assert_eq!(set(false, false, None), Vec::<u8>::new());
    }

    #[test]
    fn user_data_of_others_is_skipped() {
        assert_eq!(comment_of(&[9, 1, 7, 0, 2, b'a', 0]).as_deref(), Some("a"));
        assert_eq!(comment_of(&[0, 200, 1]), None);
        assert_eq!(comment_of(&[0]), None);
    }
}
