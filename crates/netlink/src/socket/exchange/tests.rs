//! Tests of results, positions and chunks, without a kernel.

use proptest::prelude::*;

use super::*;

/// An `NLMSG_ERROR` with these flags and this payload after the error number.
fn verdict(flags: u16, code: i32, rest: &[u8]) -> Verdict {
    let payload = [&code.to_ne_bytes()[..], rest].concat();
    Verdict::read(&Message { kind: NLMSG_ERROR, flags, sequence: 1, port: 0, payload: &payload }).unwrap()
}

/// The attributes of an extended ACK.
fn extended_ack() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut message = MessageBuilder::new(&mut bytes, 0, 0);
    message.attr_str(NLMSGERR_ATTR_MSG, "Nexthop has invalid gateway").attr_u32(NLMSGERR_ATTR_OFFS, 44);
    message.finish();
    bytes.split_off(HEADER_BYTES)
}

#[test]
fn the_extended_ack_is_found_behind_a_capped_and_behind_a_whole_request() {
    // linux/netlink.h: with NLM_F_CAPPED only the request's header is repeated.
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&26u32.to_ne_bytes());
    let capped = [&header[..], &extended_ack()].concat();
    let whole = [&header[..], &[0xff; 10], &[0; 2], &extended_ack()].concat();
    let error = verdict(NLM_F_CAPPED | NLM_F_ACK_TLVS, -22, &capped);
    assert_eq!(error, verdict(NLM_F_ACK_TLVS, -22, &whole));
    assert_eq!((error.errno, error.offset), (22, Some(44)));
    let error = error.error("add route 10.1.0.0/26 via 10.0.0.7".to_owned());
    let expected =
        "add route 10.1.0.0/26 via 10.0.0.7: EINVAL: Nexthop has invalid gateway (at byte 44 of the request)";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn an_answer_without_a_message_gets_the_errno_description() {
    let error = verdict(NLM_F_CAPPED, -17, &[0; 16]);
    assert_eq!(error, Verdict { errno: 17, text: None, offset: None });
    assert_eq!(error.error("add x".to_owned()).to_string(), "add x: EEXIST: File exists");
    assert_eq!(verdict(NLM_F_CAPPED, 0, &[0; 16]).errno, 0);
}

#[test]
fn a_failed_dump_says_so_at_its_end() {
    let payload = [&(-2i32).to_ne_bytes()[..], &extended_ack()].concat();
    let done = Message { kind: NLMSG_DONE, flags: NLM_F_ACK_TLVS, sequence: 1, port: 0, payload: &payload };
    let verdict = Verdict::read(&done).unwrap();
    assert_eq!((verdict.errno, verdict.text.as_deref()), (2, Some("Nexthop has invalid gateway")));
    assert_eq!(Verdict::read(&Message { kind: RTM_NEWLINK, ..done }), None);
}

#[test]
fn answers_are_matched_by_their_numbers() {
    // The last of three sequence numbers is 10.
    let positions: Vec<_> = [7, 8, 9, 10, 11, 0].map(|sequence| position(10, 3, sequence)).into();
    assert_eq!(positions, [None, Some(0), Some(1), Some(2), None, None]);
    assert_eq!(position(u32::MAX, 1, u32::MAX), Some(0));
}

#[test]
fn chunks_are_bounded_in_requests_and_in_bytes() {
    let filled = |requests: usize, bytes: usize| {
        let mut batch = Batch::new();
        for _ in 0..requests {
            batch.push(1, 0, |message| {
                message.raw(&vec![0; bytes]);
            });
        }
        batch
    };
    let ends = |batch: &Batch| {
        let mut ends = vec![0];
        while *ends.last().unwrap() < batch.len() {
            ends.push(chunk_end(batch, *ends.last().unwrap()));
        }
        ends
    };
    assert_eq!(ends(&filled(130, 40)), [0, 64, 128, 130]);
    assert_eq!(ends(&filled(5, 30_000)), [0, 2, 4, 5]);
    assert_eq!(ends(&filled(3, 100_000)), [0, 1, 2, 3], "too large for any chunk, each alone");
}

proptest! {
    #[test]
    fn arbitrary_verdicts_do_not_panic_the_reader(
        kind in 0u16..5,
        flags in any::<u16>(),
        payload in proptest::collection::vec(any::<u8>(), 0..128),
    ) {
        let _ = Verdict::read(&Message { kind, flags, sequence: 1, port: 0, payload: &payload });
    }

    #[test]
    fn every_position_is_inside_the_chunk(newest: u32, requests in 0usize..100, sequence: u32) {
        prop_assert!(position(newest, requests, sequence).is_none_or(|index| index < requests));
    }
}
