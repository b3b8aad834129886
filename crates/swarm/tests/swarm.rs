//! The program with the numbers that must hold. More by hand: `cargo run -p russet-swarm -- --operations 50000`.

use std::process::Command;

#[test]
#[ignore = "tool: etcd"]
fn twenty_processes_on_one_etcd_whose_members_are_killed_share_no_address() {
    // ARCHITECTURE.md, invariants 1 and 2; the seed is printed, and RUSSET_SWARM_SEED repeats it.
    let mut swarm = Command::new(env!("CARGO_BIN_EXE_russet-swarm"));
    let output = swarm.args(["--processes", "20", "--operations", "5000"]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    println!("{output_text}");
    assert!(output.status.success(), "{output_text}\n{}", String::from_utf8_lossy(&output.stderr));
    let kills = output_text.split(" members killed").next().and_then(|head| head.rsplit(' ').next());
    let kills: u32 = kills.unwrap().parse().unwrap();
    assert!(kills >= 4, "a run in which little was killed proves little: {output_text}");
}
