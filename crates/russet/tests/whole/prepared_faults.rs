//! What each command says of prepared faults: a cluster of two nodes with a pod each, and one fault after the other. The
//! answers are in docs/troubleshooting.md; `RUSSET_WRITE_DOCS=1` writes them there.

mod asked;
mod between_nodes;
mod cluster;
mod of_pods;
mod page;

use crate::printed::Printed;

/// The part of the page about some of the faults.
fn part(which: &str) -> Printed {
    let test = "crates/russet/tests/whole/prepared_faults.rs";
    let begin = format!("<!-- what each command says of faults {which}: written by the test in {test} -->");
    Printed::new("docs/troubleshooting.md", &begin, &format!("<!-- end of faults {which} -->"))
}
