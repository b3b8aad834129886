//! What plugins take, and where plugins of ours say that the time went.

use russet_cni_spec::relay::Timing;
use russet_cni_spec::{Verb, Version};
use russet_runtime::Times;

use crate::{Lab, chain};

/// Says where its time went if it is asked, as plugins of ours do, and that it had another plugin work.
const OURS: &str = r#"[ $CNI_COMMAND != ADD ] || echo '{"ips":[{"address":"10.0.0.2/24"}]}'
echo "a word" >&2
if [ "$RUSSET_CNI_TIMING" = 1 ]; then
    echo 'russet-timing: {"plugin":"host-local","total_us":40,"stages":{"address":30}}' >&2
    echo 'russet-timing: {"plugin":"bridge","total_us":90,"stages":{"turn":1,"wiring":80}}' >&2
fi"#;

#[test]
fn each_plugin_of_a_chain_has_its_time_and_ours_say_where_it_went() {
    let mut lab = Lab::new();
    lab.plugin("ours", OURS).adder("foreign").plugin("bad", "echo 'no good' >&2; exit 1");
    let times = Times::default();
    lab.runtime.times = Some(times.clone());
    let list = chain(Version::V1_0_0, &["ours", "foreign", "bad"]);
    let message = lab.message(&list);
    assert!(message.contains("no good"), "{message}");
    let taken = times.take();
    let called: Vec<_> = taken.iter().map(|it| (it.plugin.as_str(), it.verb, it.succeeded)).collect();
    assert_eq!(called, [("ours", Verb::Add, true), ("foreign", Verb::Add, true), ("bad", Verb::Add, false)]);
    let stages = |it: &Timing| (it.plugin.clone(), it.total_us, it.stages.len());
    let inside: Vec<_> = taken[0].inside.iter().map(stages).collect();
    assert_eq!(inside, [("host-local".to_owned(), 40, 1), ("bridge".to_owned(), 90, 2)]);
    assert!(taken[1].inside.is_empty() && taken.iter().all(|it| !it.elapsed.is_zero()));
    assert!(times.take().is_empty(), "what was taken is gone");
}

#[test]
fn a_plugin_is_asked_for_its_time_only_by_a_runtime_that_wants_it() {
    let lab = Lab::new();
    lab.plugin("curious", "echo \"timing=$RUSSET_CNI_TIMING\" >&2; exit 1");
    let message = lab.message(&chain(Version::V1_0_0, &["curious"]));
    assert!(message.contains("timing=\\n"), "{message}");
}
