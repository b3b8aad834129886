//! Answers that are lost and requests that are: the outcome is unknown, and is found out (calico-ipam.md section 9, SHOULD; calico#5203).

use super::vectors::{BLOCK, CONFIRMED, tv1, tv4};
use super::*;

/// Runs `work` once for each of its writes and each fault, with that fault on that write.
fn at_every_write(
    prepare: fn(Bench) -> Bench,
    work: impl Fn(&Bench) -> Result<(), IpamError>,
    check: impl Fn(&Bench),
) {
    for fault in [Fault::LostReply, Fault::LostRequest, Fault::Conflict] {
        for mode in 0..2 {
            for write in 0..12 {
                let [atomic, one_by_one] = Bench::both();
                let bench = prepare(if mode == 0 { atomic } else { one_by_one });
                let script = std::iter::repeat_n(Fault::None, write).chain([fault]);
                bench.sim.script(script);
                if let Err(error) = work(&bench) {
                    panic!(
                        "{fault:?} at write {write}, atomic {}: {error}\n{}",
                        bench.atomic(),
                        bench.sim.dump()
                    );
                }
                bench.sim.script(std::iter::repeat_n(Fault::None, 0));
                check(&bench);
            }
        }
    }
}

#[test]
fn an_address_is_allocated_once_whatever_message_is_lost() {
    let request = || Request { v4: 2, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
    let work = |bench: &Bench| {
        let got = bench.assign(&request())?;
        assert_eq!(got.len(), 2);
        Ok(())
    };
    let check = |bench: &Bench| {
        let held = run(bench.ipam.ips_by_handle(&handle("aaaa"))).unwrap();
        assert_eq!(held.len(), 2, "{}", bench.sim.dump());
        for record in bench.sim.records().values() {
            if let KeyKind::Affinity { .. } = record.key.kind() {
                assert_eq!(record.value, CONFIRMED.as_bytes());
            }
        }
        // The handle may count too many where its own write is in doubt, never too few.
        let counted: u64 =
            Handle::decode(bench.handle_text("aaaa").unwrap().as_bytes()).unwrap().block.values().sum();
        assert!(counted >= 2);
        if bench.atomic() {
            bench.check_consistent();
        }
        bench.release("aaaa");
        bench.release("aaaa"); // a count that is too high is settled by the repetition
        bench.check_consistent();
        assert_eq!(bench.handle_text("aaaa"), None);
    };
    at_every_write(Bench::with_pool, work, check);
    at_every_write(tv1, work, check);
}

#[test]
fn a_particular_address_is_allocated_once_whatever_message_is_lost() {
    let work = |bench: &Bench| {
        let request = pod("node-a", "pin", "pin-0", "03:07:00");
        let assigned = run(bench.ipam.assign_ip(&request, "10.1.0.22".parse().unwrap()))?;
        assert_eq!(texts(&assigned), ["10.1.0.22/32"]);
        Ok(())
    };
    let check = |bench: &Bench| {
        assert_eq!(run(bench.ipam.ips_by_handle(&handle("pin"))).unwrap().len(), 1);
        bench.release("pin");
        bench.release("pin");
        bench.check_consistent();
    };
    at_every_write(Bench::with_pool, work, check);
    at_every_write(tv4, work, check);
}

#[test]
fn a_release_is_complete_whatever_message_is_lost() {
    let work = |bench: &Bench| {
        run(bench.ipam.release_by_handle(&handle("bbbb"), None))?;
        Ok(())
    };
    let check = |bench: &Bench| {
        assert_eq!(run(bench.ipam.ips_by_handle(&handle("bbbb"))).unwrap().len(), 0);
        // The runtime does not repeat a DEL that succeeded.
        assert_eq!(bench.handle_text("bbbb"), None);
        bench.check_consistent();
    };
    at_every_write(tv4, work, check);
}

#[test]
fn a_guarded_release_is_complete_whatever_message_is_lost() {
    // Once the answer is lost, asking again with the old sequence number would be refused.
    let work = |bench: &Bench| {
        let guarded = crate::ReleaseOptions {
            address: "10.1.0.18".parse().unwrap(),
            handle: Some(handle("bbbb")),
            sequence_number: Some(S + 1),
        };
        let released = run(bench.ipam.release_ips(&[guarded]))?;
        assert_eq!(released.addresses.len(), 1);
        Ok(())
    };
    let check = |bench: &Bench| {
        assert_eq!(bench.block(BLOCK).allocations[2], None);
        assert_eq!(run(bench.ipam.ips_by_handle(&handle("bbbb"))).unwrap().len(), 1);
    };
    at_every_write(tv4, work, check);
}

#[test]
fn an_affinity_is_released_completely_whatever_message_is_lost() {
    let work = |bench: &Bench| run(bench.ipam.release_affinity(&node("node-a"), cidr(BLOCK), false));
    at_every_write(tv4, work, |bench| {
        assert_eq!(bench.affinity_text("node-a", BLOCK), None);
        assert_eq!(bench.block(BLOCK).affinity, None);
    });
    at_every_write(tv1, work, |bench| {
        assert_eq!((bench.affinity_text("node-a", BLOCK), bench.block_text(BLOCK)), (None, None));
    });
}

#[test]
fn an_unavailable_store_fails_the_request_without_a_trace() {
    for bench in Bench::both().map(tv1) {
        let before = bench.sim.dump();
        bench.sim.script([Fault::Unavailable]);
        let error = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
        assert!(error.retryable(), "{error}");
        assert_eq!(bench.sim.dump(), before);
        // Between handle and block, where the engine executes one by one, the handle is lowered again.
        bench.sim.script([Fault::None, Fault::Unavailable]);
        if bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).is_err() {
            assert_eq!(bench.handle_text("aaaa"), None);
        }
        bench.check_consistent();
    }
}

#[test]
fn endless_conflicts_end_in_an_error_with_block_and_attempts() {
    for bench in Bench::both().map(tv1) {
        bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap();
        // The first record that a release writes is the block.
        let every_block_write = vec![Fault::Conflict; 400];
        bench.sim.script(every_block_write);
        let error = run(bench.ipam.release_by_handle(&handle("aaaa"), None)).unwrap_err();
        assert!(error.to_string().contains("10.1.0.16-29: other writers were faster 100 times"), "{error}");
        assert!(error.retryable());
    }
}
