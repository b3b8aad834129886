//! Tests of the framing, byte by byte.

use super::*;

#[test]
fn a_message_has_the_kernels_framing() {
    // The framing of linux/netlink.h.
    let mut bytes = vec![0xaa; 4];
    let mut message = MessageBuilder::new(&mut bytes, 0x1234, 0x0605);
    message.raw(&[9, 9]).attr_str(3, "abc").attr_u8(4, 7);
    assert_eq!((message.len(), message.is_empty()), (36, false));
    assert!(message.finish());
    let expected: Vec<u8> = [
        &[0xaa; 4][..],
        &36u32.to_ne_bytes(),
        &0x1234u16.to_ne_bytes(),
        &0x0605u16.to_ne_bytes(),
        &[0; 8],
        &[9, 9, 0, 0],
        &8u16.to_ne_bytes(),
        &3u16.to_ne_bytes(),
        b"abc\0",
        &5u16.to_ne_bytes(),
        &4u16.to_ne_bytes(),
        &[7, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn nested_attributes_are_marked_and_read_back() {
    let mut bytes = Vec::new();
    let mut message = MessageBuilder::new(&mut bytes, 1, 0);
    message.nested(5, |outer| {
        outer.attr_be32(1, 0x0102_0304).nested(2, |inner| {
            inner.attr_be16(1, 0x0506).attr_u64(2, u64::MAX).attr_be64(3, 1).attr_u16(4, 8).attr_flag(5);
        });
    });
    assert!(message.finish());
    assert_eq!(bytes[19], 0x80, "NLA_F_NESTED");
    let message = Messages::new(&bytes).next().unwrap().unwrap();
    let outer = message.attributes(0).find(5).unwrap().nested();
    assert_eq!(outer.find(1).unwrap().be32(), Some(0x0102_0304));
    let inner = outer.find(2).unwrap().nested();
    assert_eq!(inner.clone().map(|attribute| attribute.kind).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(inner.find(1).unwrap().be16(), Some(0x0506));
    assert_eq!(inner.find(2).unwrap().u64(), Some(u64::MAX));
    assert_eq!((inner.find(3).unwrap().be64(), inner.find(4).unwrap().u16()), (Some(1), Some(8)));
    assert_eq!(inner.find(5).unwrap().u8(), None, "a flag has no payload");
}

#[test]
fn an_attribute_beyond_64_kib_invalidates_the_message() {
    let mut bytes = Vec::new();
    let mut message = MessageBuilder::new(&mut bytes, 1, 0);
    message.attr(1, &[0; 65_531]);
    assert!(message.finish(), "65,535 bytes with its header");
    let mut message = MessageBuilder::new(&mut bytes, 1, 0);
    message.attr(1, &[0; 65_532]);
    assert!(!message.finish());
    let mut message = MessageBuilder::new(&mut bytes, 1, 0);
    message.nested(1, |inner| {
        inner.attr(1, &[0; 40_000]).attr(2, &[0; 40_000]);
    });
    assert!(!message.finish());
}

#[test]
fn an_impossible_length_ends_the_reading() {
    for len in [0u32, 15, 17, u32::MAX] {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0; 12]);
        let read: Vec<_> = Messages::new(&bytes).collect();
        assert_eq!(read, [Err(Malformed)], "{len}");
    }
    for len in [0u16, 3, 9, u16::MAX] {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0; 6]);
        assert_eq!(Attributes::new(&bytes).count(), 0, "{len}");
    }
}

#[test]
fn text_ends_at_its_nul_and_need_not_be_utf_8() {
    let text = |payload: &[u8]| Attribute { kind: 1, payload }.text();
    assert_eq!(
        (text(b"eth0\0junk").as_str(), text(b"eth0").as_str(), text(b"").as_str()),
        ("eth0", "eth0", "")
    );
    assert_eq!(text(b"\xff\xfe\0"), "\u{fffd}\u{fffd}");
}

#[test]
fn addresses_have_4_16_or_6_bytes() {
    let attribute = |payload| Attribute { kind: 1, payload };
    assert_eq!(attribute(&[10, 0, 0, 1]).ip(), Some("10.0.0.1".parse().unwrap()));
    assert_eq!(attribute(&[0; 16]).ip(), Some("::".parse().unwrap()));
    assert_eq!((attribute(&[0; 5]).ip(), attribute(&[0; 5]).mac()), (None, None));
    assert_eq!(attribute(&[1, 2, 3, 4, 5, 6]).mac(), Some(Mac([1, 2, 3, 4, 5, 6])));
}
