use super::*;
use russet_journal::{Begin, Effect};

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"net","type":"russet","cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}"#;

fn id(container: &str) -> EndpointId {
    format!("net/{container}/eth0").parse().unwrap()
}

fn open(verb: Verb, repeated: bool, effects: Vec<Effect>) -> OpenOperation {
    let name = match verb {
        Verb::Add => "ADD",
        Verb::Del => "DEL",
        Verb::Gc => "GC",
    };
    let vars = [
        ("CNI_COMMAND", name),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/p"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/"),
    ];
    let begin = Begin {
        op: 7,
        at_ms: 0,
        verb,
        plugin: "russet".to_owned(),
        network: "net".parse().unwrap(),
        interface: (verb != Verb::Gc).then(|| id("abc").into()),
        pod: None,
        env: vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        config: CONFIG.to_owned(),
        repeated,
    };
    OpenOperation { begin, effects: effects.into_iter().map(|effect| (0, effect)).collect() }
}

fn kernel(wired: &[&str]) -> KernelState {
    KernelState { wired: Some(wired.iter().map(|container| id(container)).collect()) }
}

#[test]
fn an_add_is_rolled_back_unless_its_attachment_was_complete_before() {
    let (nothing, pod) = (kernel(&[]), kernel(&["abc"]));
    let reused = || vec![Effect::Wired { reused: true, bridge_mac: None }];
    let new = || vec![Effect::Wired { reused: false, bridge_mac: None }];
    let decided = |repeated, effects, kernel| decide(&open(Verb::Add, repeated, effects), false, kernel);
    for kernel in [&nothing, &pod] {
        assert_eq!(decided(false, vec![], kernel), Decision::Undo);
        assert_eq!(decided(false, new(), kernel), Decision::Undo, "its caller never had the answer");
        assert_eq!(decided(true, vec![], kernel), Decision::Keep(11));
        assert_eq!(decided(true, new(), kernel), Decision::Keep(11));
        assert_eq!(decided(false, reused(), kernel), Decision::Keep(11));
    }
}

#[test]
fn a_damaged_journal_does_not_affect_running_pods() {
    let (nothing, pod) = (kernel(&[]), kernel(&["abc"]));
    let decided = |verb, kernel| decide(&open(verb, false, vec![]), true, kernel);
    assert_eq!(decided(Verb::Add, &pod), Decision::Keep(0));
    assert_eq!(decided(Verb::Add, &nothing), Decision::Undo);
    assert_eq!(decided(Verb::Del, &pod), Decision::Keep(11));
    assert_eq!(decided(Verb::Del, &nothing), Decision::Finish);
    assert_eq!(decided(Verb::Gc, &nothing), Decision::Keep(11));
    assert_eq!(decide(&open(Verb::Gc, false, vec![]), false, &nothing), Decision::Finish);
}

#[test]
fn without_kernel_state_every_pod_counts_as_running() {
    let unknown = KernelState::default();
    let decided = |verb, damaged| decide(&open(verb, false, vec![]), damaged, &unknown);
    assert_eq!(decided(Verb::Add, true), Decision::Keep(0));
    assert_eq!(decided(Verb::Del, true), Decision::Keep(11));
    for damaged in [true, false] {
        assert_eq!(decided(Verb::Gc, damaged), Decision::Keep(11), "pods without an agent may have come");
    }
    // A complete journal is reliable: no caller had an answer.
    assert_eq!(decided(Verb::Add, false), Decision::Undo);
    assert_eq!(decided(Verb::Del, false), Decision::Finish);
}

#[test]
fn an_add_is_undone_by_the_del_of_the_same_request() {
    for verb in [Verb::Add, Verb::Del] {
        let request = request(&open(verb, false, vec![]), &[]).unwrap();
        let Call::Del(target) = &request.env.call else { panic!("{request:?}") };
        assert_eq!(target.id, id("abc"));
        assert_eq!((target.netns.as_str(), request.config.name.as_str()), ("/run/netns/p", "net"));
    }
}

#[test]
fn a_gc_that_is_rolled_forward_keeps_newer_attachments() {
    let request = request(&open(Verb::Gc, false, vec![]), &[id("late")]).unwrap();
    assert_eq!(request.env.call, Call::Gc);
    let valid = request.config.valid_attachments().unwrap().unwrap();
    let names: Vec<&str> = valid.iter().map(|it| it.container.as_str()).collect();
    assert_eq!(names, ["keep", "late"]);
}

#[test]
fn an_impossible_journal_entry_is_an_error() {
    let broken = |change: fn(&mut Begin)| {
        let mut open = open(Verb::Gc, false, vec![]);
        change(&mut open.begin);
        request(&open, &[]).is_err()
    };
    assert!(broken(|begin| begin.config = "[]".to_owned()));
    assert!(broken(|begin| begin.env.clear()));
    let nameless = |begin: &mut Begin| {
        begin.verb = Verb::Del;
        begin.env.retain(|(key, _)| key != "CNI_CONTAINERID");
    };
    assert!(broken(nameless));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_begins_when_the_store_is_back_and_not_after_the_whole_pause() {
    let (sender, receiver) = watch::channel(0);
    let mut contacts = Some(receiver);
    let begun = tokio::time::Instant::now();
    let answers = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sender.send_modify(|count| *count += 1);
    };
    let (found, ()) = tokio::join!(is_back(&mut contacts, PAUSE_MAX), answers);
    assert!(found && begun.elapsed() <= Duration::from_secs(1) + CONTACT_SPREAD, "{:?}", begun.elapsed());
    assert!(!is_back(&mut contacts, PAUSE_MIN).await);
    assert!(!is_back(&mut None, PAUSE_MIN).await, "another store says nothing");
    drop(sender);
    let begun = tokio::time::Instant::now();
    assert!(!is_back(&mut contacts, PAUSE_MIN).await);
    assert!(begun.elapsed() >= PAUSE_MIN, "no attempt without a pause");
}
