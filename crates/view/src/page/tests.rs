use super::*;
use crate::map::{BlockFacts, Facts, NodeFacts, NodeState};
use crate::testing::{self, Element};

const HOSTILE: &str = "<script>alert('x')</script>\"&\u{1b}";
/// Elements without an end tag.
const VOID: [&str; 3] = ["meta", "link", "br"];

fn at() -> String {
    "2026-11-28T10:00:00Z".to_owned()
}

/// A map of two nodes that do not reach each other.
fn map(text: &str) -> Map {
    let node = |name: &str, other: &str| NodeFacts {
        name: name.to_owned(),
        state: NodeState::Ready,
        reasons: vec![text.to_owned()],
        unreachable: vec![other.to_owned()],
        ..NodeFacts::default()
    };
    let block = |node: Option<&str>, in_use| BlockFacts {
        node: node.map(str::to_owned),
        block: crate::map::MapBlock { cidr: text.to_owned(), in_use, size: 64 },
    };
    let (nodes, blocks) =
        (vec![node("n1", text), node(text, "n1")], vec![block(Some("n1"), 61), block(None, 0)]);
    Map::new(Facts { nodes, pools: Vec::new(), blocks })
}

fn peer(text: &str) -> PeerRow {
    PeerRow {
        node: text.to_owned(),
        ip_version: 4,
        state: "unreachable".into(),
        path: "tunnel".into(),
        probed: text.to_owned(),
        rtt_us: Some(1234),
        lost: 3,
        lost_of: 20,
        reason: Some(text.to_owned()),
    }
}

fn flow(text: &str) -> FlowRow {
    FlowRow {
        last: at(),
        verdict: "denied".to_owned(),
        direction: text.to_owned(),
        from: text.to_owned(),
        to: text.to_owned(),
        what: text.to_owned(),
        packets: 7,
        policies: vec![text.to_owned()],
        reason: text.to_owned(),
    }
}

fn operation(text: &str, outcome: Option<&str>) -> OperationRow {
    OperationRow {
        began: at(),
        verb: text.to_owned(),
        plugin: text.to_owned(),
        subject: text.to_owned(),
        outcome: outcome.map(str::to_owned),
        ms: outcome.map(|_| 3),
    }
}

fn page(text: &str) -> NodePage {
    let one = || text.to_owned();
    let pod = PodRow { name: one(), interface: one(), network: one(), addresses: vec![one()], since: at() };
    let repair =
        RepairRow { at: at(), what: vec![one()], more: 2, by: vec![one()], ms: 1.5, errors: vec![one()] };
    NodePage {
        schema: NodePage::SCHEMA,
        node: one(),
        version: one(),
        at: at(),
        uptime_s: 90_061,
        datastore: one(),
        latency_us: Some(840),
        problems: vec![one()],
        map: map(text),
        map_note: Some(one()),
        peers: vec![peer(text)],
        peers_note: Some(one()),
        pods: vec![pod],
        pods_total: 3,
        flows: vec![flow(text)],
        flows_note: Some(one()),
        operations: vec![operation(text, None), operation(text, Some(text))],
        repairs: vec![repair],
        repairs_total: 9,
    }
}

fn empty() -> NodePage {
    let nothing = page("n1");
    NodePage {
        problems: Vec::new(),
        map: Map::new(Facts::default()),
        map_note: None,
        peers: Vec::new(),
        peers_note: None,
        pods: Vec::new(),
        pods_total: 0,
        flows: Vec::new(),
        flows_note: None,
        operations: Vec::new(),
        repairs: Vec::new(),
        ..nothing
    }
}

fn named<'e>(elements: &'e [Element], name: &str) -> Vec<&'e Element> {
    elements.iter().filter(|element| element.name == name).collect()
}

#[test]
fn whatever_pods_policies_and_processes_are_called_the_page_has_its_own_elements_only() {
    let (plain, _) = testing::read(&page("A").html(), &VOID);
    let (hostile, text) = testing::read(&page(HOSTILE).html(), &VOID);
    assert!(text.matches("<script>alert('x')</script>\"&\\u{1b}").count() > 25, "it is text: {text}");
    let names = |elements: &[Element]| elements.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    // The name of a node has other lines in its box; everything else is the same.
    assert_eq!(names(&hostile), names(&plain));
    let attributes = |elements: &[Element]| {
        let keys = |it: &Element| it.attributes.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        elements.iter().flat_map(keys).collect::<Vec<_>>()
    };
    assert_eq!(attributes(&hostile), attributes(&plain));
    assert_eq!(named(&hostile, "script").len(), 1);
    // The policy of the page allows no inline style or script.
    for element in &hostile {
        assert!(
            element.name != "style"
                && !element.attributes.iter().any(|(name, _)| name == "style" || name.starts_with("on"))
        );
    }
    for section in page(HOSTILE).sections().sections {
        testing::read(&section.html, &VOID);
    }
}

#[test]
fn the_page_is_usable_by_keyboard_and_by_programs_that_read_it_aloud() {
    let (elements, _) = testing::read(&page("x").html(), &VOID);
    let ids: Vec<&str> = elements.iter().filter_map(|it| it.get("id")).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), ids.len(), "an identifier is there twice");
    for element in &elements {
        for name in ["aria-labelledby", "href"] {
            let target =
                element.get(name).and_then(|it| if name == "href" { it.strip_prefix('#') } else { Some(it) });
            assert!(target.is_none_or(|target| ids.contains(&target)), "{element:?}");
        }
    }
    let skip = elements.iter().position(|it| it.get("class") == Some("skip")).unwrap();
    assert_eq!(elements[skip].get("href"), Some("#main"));
    assert!(elements.iter().take(skip).all(|it| it.name != "a"), "it is the first link");
    assert_eq!(named(&elements, "html")[0].get("lang"), Some("en"));
    assert_eq!(named(&elements, "h1").len(), 1);
    assert_eq!(named(&elements, "h2").len(), named(&elements, "section").len());
    assert_eq!(named(&elements, "table").len(), named(&elements, "caption").len());
    assert!(named(&elements, "th").iter().all(|it| it.get("scope").is_some()));
    // What scrolls can get the focus.
    let scrollers: Vec<_> = elements.iter().filter(|it| it.get("class") == Some("scroller")).collect();
    assert!(scrollers.len() > 6 && scrollers.iter().all(|it| it.get("tabindex") == Some("0")));
}

#[test]
fn sections_have_what_they_are_about_as_text() {
    let sections = page("x").sections().sections;
    let of = |id: &str| testing::read(&sections.iter().find(|it| it.id == id).unwrap().html, &VOID).1;
    assert!(of("state").contains("1 problem:") && of("state").contains("up 1 d 1 h"), "{}", of("state"));
    assert!(of("topology").contains("unreachable"), "{}", of("topology"));
    assert!(of("blocks").contains("95% 61 of 64") && of("blocks").contains("no node"), "{}", of("blocks"));
    assert!(of("peers").contains("1.23 ms") && of("peers").contains("3 of 20"), "{}", of("peers"));
    assert!(of("flows").contains("denied") && of("pods").contains("2 more are left out"));
    assert!(of("operations").contains("in progress") && of("operations").contains("3 ms"));
    assert!(of("repairs").contains("and 2 more") && of("repairs").contains("1.50 ms"));
    let text = testing::read(&empty().html(), &VOID).1;
    for words in [
        "No problems.",
        "No blocks are known.",
        "No other node is probed.",
        "No flows.",
        "No pods.",
        "Nothing was repaired",
    ] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn a_program_reads_the_page_from_its_json() {
    for page in [page(HOSTILE), empty()] {
        let written = serde_json::to_value(&page).unwrap();
        let read: NodePage = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
    }
}

#[test]
fn without_scripts_the_page_reloads_itself() {
    let html = page("x").html();
    assert!(html.contains("<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>"), "{html}");
    assert!(html.contains("<a href=\"./\">reload now</a>"), "{html}");
}

#[test]
fn all_of_the_page_is_smaller_than_200_kb() {
    let mut large = page("a-rather-long-name-of-a-pod-or-policy/with-its-namespace");
    large.pods = vec![large.pods[0].clone(); 100];
    large.flows = vec![large.flows[0].clone(); 50];
    large.peers = vec![large.peers[0].clone(); 64];
    large.operations = vec![large.operations[1].clone(); 50];
    large.repairs = vec![large.repairs[0].clone(); 20];
    let (shell, data) = (empty().html().len() + STYLE.len() + SCRIPT.len(), large.html().len());
    println!("{shell} bytes, and with a full page {data}");
    assert!(shell < 30_000 && data + STYLE.len() + SCRIPT.len() < 200_000, "{shell} {data}");
    assert!(serde_json::to_vec(&large.sections()).unwrap().len() < 200_000);
}
