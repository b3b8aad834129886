//! What keys do, and what frames have, by a test's terminal.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier};
use russet_agent::flows::FlowsReport;
use russet_testkit::Random;
use russet_view::map::MapBlock;
use serde_json::{Value, json};

use super::line::{Line, Piece, Table, Tone};
use super::model::{Event, Input, Model, Next, Rates};
use super::panes::Pane;
use super::sample::Sample;
use super::*;

/// What terminals obey, text that is wider or narrower than its characters, and text that turns its line.
const HOSTILE: &str = "evil\u{1b}[2J\u{1b}]0;title\u{7}\r\n\t\u{9b}31m\u{202e}\u{200d}e\u{301}\u{4e16}\u{5d0}\u{1f468}\u{200d}\u{1f469}\u{7f}";

/// A sample whose names are `name`.
fn sample(name: &str) -> Sample {
    let peer = |node: &str, state: &str, reason: Value| {
        json!({"node": node, "ip_version": 4, "path": "tunnel", "probed": "10.244.1.1", "underlay": "10.0.0.2", "state": state,
            "rtt_us": 412, "lost": 3, "lost_of": 9, "reason": reason, "age_s": 1})
    };
    let status = json!({
        "schema": 1, "version": name, "node": name, "store": format!("etcd:{name}"), "pid": 7, "uptime_s": 3700,
        "conditions": [{"name": "store"}], "remarks": [],
        "datastore": {"latency_us": 840, "answered_s_ago": 3, "silence_s": 3}, "endpoints": 2,
        "routes": {"expected": 3, "present": 3, "refused": 0, "paths": []},
        "peers": {"known": 2, "at_a_time": 16, "interval_ms": 5000,
            "counts": {"reachable": 1, "unreachable": 1, "small_packets_only": 0, "unknown": 0},
            "peers": [peer(name, "unreachable", json!(format!("its tunnel is closed {name}"))), peer("node-c", "reachable", Value::Null)]},
    });
    let block = |cidr: &str, in_use: usize| json!({"cidr": cidr, "in_use": in_use, "size": 64});
    let flow = |id: u64, verdict: &str, to: &str| {
        json!({"id": id, "first": "2026-11-28T19:47:01Z", "last": "2026-11-28T19:47:02Z", "packets": 3, "verdict": verdict,
            "direction": "ingress", "source": {"name": name, "address": "10.1.0.2"}, "destination": {"name": to, "address": "10.1.0.9"},
            "proto": "tcp", "port": 5432, "icmp": null, "policies": [{"kind": "NetworkPolicy", "namespace": "shop", "name": name}],
            "rule": null, "reason": name, "pending": null})
    };
    let page = json!({
        "schema": 1, "node": name, "version": name, "at": "2026-11-28T19:47:42Z", "uptime_s": 3700, "datastore": format!("etcd:{name}"), "latency_us": 840,
        "problems": [], "map_note": name, "peers": [], "peers_note": name, "pods_total": 5,
        "map": {"schema": 1, "links_total": 1, "problem_links_left_out": 0, "blocks_without_node": [block("10.244.9.0/26", 0)],
            "nodes": [{"name": name, "state": "ready", "addresses": [], "reasons": [], "unreachable": 1,
                "blocks": [block(name, 16), block("10.244.0.64/26", 64)]}],
            "links": [{"nodes": [name, "node-c"], "via": ["vxlan"], "state": "unreachable", "reported_by": [name]}]},
        "pods": [{"name": format!("shop/{name}"), "interface": "eth0", "network": "russet", "addresses": ["10.244.0.2/32"], "since": "2026-11-27T10:00:00Z"}],
        "flows": [], "flows_note": name,
        "operations": [
            {"began": "2026-11-28T19:47:30Z", "verb": "ADD", "plugin": "russet", "subject": name, "outcome": null, "ms": null},
            {"began": "2026-11-28T19:47:00Z", "verb": "DEL", "plugin": "russet", "subject": "web", "outcome": "done", "ms": 12}],
        "repairs": [{"at": "2026-11-28T19:40:00Z", "what": [format!("put route {name}")], "more": 2, "by": [name], "ms": 1.25, "errors": []}],
        "repairs_total": 3,
    });
    let flows = json!({"schema": 1, "unread": null, "flows": [flow(1, "allowed", "shop/web"), flow(2, "denied", "shop/db")], "next": 20, "missed": 0,
        "packets": {"denied": 100, "suppressed": 0, "lost": 0}});
    Sample {
        status: serde_json::from_value(status).unwrap(),
        page: serde_json::from_value(page).unwrap(),
        flows: serde_json::from_value(flows).unwrap(),
    }
}

fn model(name: &str) -> Model {
    Model::new(sample(name), Instant::now())
}

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn press(model: &mut Model, code: KeyCode) -> Next {
    model.update(key(code), Instant::now())
}

fn types(model: &mut Model, text: &str) {
    for c in text.chars() {
        press(model, KeyCode::Char(c));
    }
}

fn drawn(model: &Model, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|it| frame::draw(model, it.buffer_mut(), true)).unwrap();
    terminal.backend().buffer().clone()
}

/// What a terminal of this size shows.
fn shown(model: &mut Model, width: u16, height: u16) -> String {
    model.update(Event::Size(width, height), Instant::now());
    let buffer = drawn(model, width, height);
    let row = |y: u16| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

fn answer(model: &mut Model, answer: Result<Sample, String>, after: Duration) {
    model.update(Event::Answer(Box::new(answer)), Instant::now() + after);
}

#[test]
fn each_pane_lists_what_it_is_about() {
    let mut model = model("node-a");
    for (digit, texts) in [
        (
            '1',
            &[
                "! node node-a is not reached (IPv4, tunnel)",
                "    ping 10.0.0.2",
                "3 of 3 present",
                "node-a - node-c: unreachable (vxlan)",
            ][..],
        ),
        ('2', &["NODE", "unreachable", "0.41 ms", "3/9", "its tunnel is closed"]),
        (
            '3',
            &[
                "[#####...............]  25%  16 of 64",
                "[####################] 100%  64 of 64, full",
                "no node",
            ],
        ),
        ('4', &["19:47:02  denied   ingress", "shop/db   tcp/5432", "NetworkPolicy shop/node-a"]),
        ('5', &["shop/node-a  eth0", "10.244.0.2/32", "2026-11-27T10:00:00Z", "4 more are left out"]),
        ('6', &["12s so far", "in progress", "DEL   russet  12 ms"]),
        ('7', &["19:40:00", "1.25 ms", "put route node-a, and 2 more", "restored"]),
    ] {
        assert_eq!(press(&mut model, KeyCode::Char(digit)), Next::Draw);
        let text = shown(&mut model, 150, 30);
        for part in texts {
            assert!(text.contains(part), "{digit}: {part}:\n{text}");
        }
        assert!(text.starts_with("node-a: ready, 1 problem (agent node-a, up 1h1m)\nas of 19:47:42 | pods 5 | repairs 3 | datastore "), "{text}");
        assert!(text.contains(&format!("[{digit} {}]", model.pane.title())), "{text}");
    }
    // The newest flow is the first.
    press(&mut model, KeyCode::Char('4'));
    let text = shown(&mut model, 150, 30);
    assert!(text.find("denied ") < text.find("allowed"), "{text}");
}

#[test]
fn a_pane_without_rows_says_so() {
    let mut sample = sample("node-a");
    (sample.flows, sample.page.flows_note) = (None, Some("This agent enforces no policies.".to_owned()));
    sample.status.peers = Default::default();
    (sample.page.pods, sample.page.operations, sample.page.repairs) = Default::default();
    sample.page.map = russet_view::map::Map::new(Default::default());
    let mut model = Model::new(sample, Instant::now());
    for (digit, text) in [
        ('1', "No problems."),
        ('2', "No other node is probed."),
        ('3', "No blocks are known."),
        ('4', "No flows.\n\nThis agent enforces no policies.\n"),
        ('5', "No pods."),
        ('6', "No requests since"),
        ('7', "Nothing was repaired"),
    ] {
        press(&mut model, KeyCode::Char(digit));
        let shown = shown(&mut model, 100, 24);
        assert!(shown.contains(text), "{digit}: {shown}");
    }
}

#[test]
fn keys_choose_panes_and_quit() {
    let mut model = model("node-a");
    let mut seen = Vec::new();
    for _ in Pane::ALL {
        seen.push(model.pane);
        press(&mut model, KeyCode::Tab);
    }
    assert_eq!((seen.as_slice(), model.pane), (&Pane::ALL[..], Pane::State));
    press(&mut model, KeyCode::BackTab);
    assert_eq!(model.pane, Pane::Drift);
    for c in ['0', '8', '9', 'x'] {
        press(&mut model, KeyCode::Char(c));
        assert_eq!(model.pane, Pane::Drift);
    }
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(press(&mut model, code), Next::Quit);
    }
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(&mut model, KeyCode::Char('c')), Next::Draw);
    assert_eq!(model.update(Event::Key(control_c), Instant::now()), Next::Quit);
    // Terminals that report when a key is released.
    let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
    assert_eq!(model.update(Event::Key(released), Instant::now()), Next::Draw);
    press(&mut model, KeyCode::Char('/'));
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::Draw, "a letter of the filter");
    assert_eq!(model.update(Event::Key(control_c), Instant::now()), Next::Quit);
}

#[test]
fn a_filter_keeps_rows_that_contain_it_in_any_case() {
    let mut model = model("node-a");
    press(&mut model, KeyCode::Char('2'));
    press(&mut model, KeyCode::Char('/'));
    types(&mut model, "NODE-Cx");
    press(&mut model, KeyCode::Backspace);
    let text = shown(&mut model, 100, 20);
    assert!(
        text.contains("filter: node-c ") && text.contains("\nnode-c ") && !text.contains("3/9  its"),
        "{text}"
    );
    press(&mut model, KeyCode::Enter);
    let text = shown(&mut model, 100, 20);
    assert!(model.input == Input::Commands && text.contains("filter \"node-c\" | ? help"), "{text}");
    press(&mut model, KeyCode::Char('5'));
    assert!(shown(&mut model, 100, 20).contains("None of 1 row contains the filter."));
    // The state's lines, too: a problem stays with its next step.
    press(&mut model, KeyCode::Char('1'));
    press(&mut model, KeyCode::Char('/'));
    press(&mut model, KeyCode::Esc);
    press(&mut model, KeyCode::Char('/'));
    types(&mut model, "ping 10");
    let text = shown(&mut model, 100, 20);
    assert!(
        text.contains("! node node-a") && text.contains("    ping 10") && !text.contains("routes"),
        "{text}"
    );
    press(&mut model, KeyCode::Esc);
    assert!(model.filter.is_empty() && shown(&mut model, 100, 20).contains("routes"));
    press(&mut model, KeyCode::Char('/'));
    types(&mut model, &"\u{130}".repeat(5000));
    assert!(model.filter.chars().count() < 70);
    model.update(Event::Key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)), Instant::now());
    assert_eq!(model.filter, "");
}

#[test]
fn only_denied_flows_are_asked_for_and_shown() {
    let mut model = model("node-a");
    press(&mut model, KeyCode::Char('4'));
    assert!(shown(&mut model, 120, 20).contains("allowed") && !model.wants_denied());
    assert_eq!(press(&mut model, KeyCode::Char('d')), Next::Ask);
    let text = shown(&mut model, 120, 20);
    assert!(model.wants_denied() && !text.contains("allowed") && text.contains("denied  "), "{text}");
    assert!(text.contains("denied only | ? help"), "{text}");
    assert_eq!(press(&mut model, KeyCode::Char('d')), Next::Ask);
    assert!(shown(&mut model, 120, 20).contains("allowed"));
}

#[test]
fn a_pause_keeps_what_is_shown_and_asks_no_more() {
    let mut model = model("node-a");
    assert_eq!(model.update(Event::Due, Instant::now()), Next::Ask);
    assert_eq!(press(&mut model, KeyCode::Char('p')), Next::Draw);
    assert!(model.is_paused() && shown(&mut model, 100, 20).contains("\n PAUSED  as of 19:47:42"));
    assert_eq!(model.update(Event::Due, Instant::now()), Next::Draw);
    answer(&mut model, Ok(sample("node-b")), Duration::ZERO);
    assert!(shown(&mut model, 100, 20).starts_with("node-a: "));
    assert_eq!(press(&mut model, KeyCode::Char('p')), Next::Ask);
    answer(&mut model, Ok(sample("node-b")), Duration::ZERO);
    assert!(shown(&mut model, 100, 20).starts_with("node-b: "));
}

#[test]
fn an_agent_that_does_not_answer_leaves_its_last_answer_marked_as_old() {
    let mut model = model("node-a");
    answer(&mut model, Err(format!("no agent runs {HOSTILE}")), Duration::from_secs(75));
    for height in [3, 6, 12, 24] {
        let buffer = drawn(&model, 120, height);
        let row = |y: u16| -> String { (0..120).map(|x| buffer[(x, y)].symbol()).collect() };
        let at = u16::from(height > 6);
        let away = "the agent does not answer since 19:47:42 (1m15s): no agent runs evil";
        assert!(row(at).starts_with(away), "{height}: {}", row(at));
        assert!(buffer[(0, at)].modifier.contains(Modifier::REVERSED));
        assert!(height <= 6 || row(0).starts_with("old: node-a: ready"), "{}", row(0));
    }
    assert!(shown(&mut model, 120, 24).contains("3 of 3 present"));
    assert_eq!(model.update(Event::Due, Instant::now()), Next::Ask, "it goes on");
    answer(&mut model, Ok(sample("node-a")), Duration::from_secs(80));
    let text = shown(&mut model, 120, 24);
    assert!(text.starts_with("node-a: ready") && !text.contains("does not answer"), "{text}");
}

#[test]
fn rates_are_between_two_answers_of_one_agent() {
    let mut model = model("node-a");
    let later = |next: u64, denied: u64, pid: u32| {
        let mut sample = sample("node-a");
        sample.status.pid = pid;
        let flows: &mut FlowsReport = sample.flows.as_mut().unwrap();
        (flows.next, flows.packets.denied) = (next, denied);
        sample
    };
    let began = Instant::now();
    let mut model_answer = |sample: Sample, after_s: u64| {
        model.update(Event::Answer(Box::new(Ok(sample))), began + Duration::from_secs(after_s));
        model.rates
    };
    let rates = model_answer(later(30, 150, 7), 1000).unwrap();
    assert!(rates.flows > 0.0 && rates.flows < 0.011, "{rates:?}");
    assert_eq!(model_answer(later(40, 250, 7), 1010), Some(Rates { flows: 1.0, denied_packets: 10.0 }));
    let none = sample("node-a");
    assert_eq!(model_answer(later(9, 9, 8), 1020), None, "another agent counts anew");
    assert_eq!(model_answer(Sample { flows: None, ..none }, 1030), None);
    answer(&mut model, Ok(later(40, 250, 7)), Duration::from_secs(1040));
    answer(&mut model, Ok(later(55, 250, 7)), Duration::from_secs(1050));
    let text = shown(&mut model, 120, 24);
    assert!(text.contains("flows 1.5/s"), "{text}");
    press(&mut model, KeyCode::Char('4'));
    let text = shown(&mut model, 120, 24);
    assert!(text.contains("1.5 new flows and 0.0 denied packets in a second"), "{text}");
}

#[test]
fn rows_scroll_and_stop_at_both_ends() {
    let mut sample = sample("node-a");
    let block = |n: usize| MapBlock { cidr: format!("10.0.{n}.0/26"), in_use: n, size: 64 };
    sample.page.map.blocks_without_node = (0..50).map(block).collect();
    (sample.page.map.nodes, sample.page.map_note) = (Vec::new(), None);
    let mut model = Model::new(sample, Instant::now());
    press(&mut model, KeyCode::Char('3'));
    // 8 rows of 12 are the body, and 7 of these below the heading.
    let text = shown(&mut model, 80, 12);
    assert!(
        text.contains("10.0.0.0/26") && text.contains("10.0.6.0/26") && !text.contains("10.0.7.0/26"),
        "{text}"
    );
    assert!(text.contains("\n1-7 of 50 | ? help"), "{text}");
    let first = |model: &mut Model, code| {
        press(model, code);
        model.scrolled().rows
    };
    for (code, row) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 8),
        (KeyCode::Up, 7),
        (KeyCode::PageUp, 0),
        (KeyCode::End, 43),
        (KeyCode::Down, 43),
        (KeyCode::Home, 0),
    ] {
        assert_eq!(first(&mut model, code), row, "{code:?}");
    }
    first(&mut model, KeyCode::End);
    let text = shown(&mut model, 80, 12);
    assert!(
        text.contains("NODE ") && text.contains("10.0.49.0/26") && text.contains("44-50 of 50"),
        "{text}"
    );
    // Fewer rows, and a larger terminal, leave no empty screen.
    assert!(shown(&mut model, 80, 60).contains("10.0.0.0/26"));
    // Each pane has its own place.
    press(&mut model, KeyCode::Char('5'));
    assert_eq!(model.scrolled().rows, 0);
}

#[test]
fn lines_that_do_not_fit_are_marked_and_shift() {
    let mut model = model("node-a");
    press(&mut model, KeyCode::Char('4'));
    let text = shown(&mut model, 60, 12);
    let row = |text: &str| text.lines().find(|line| line.contains("denied")).unwrap().to_owned();
    assert!(row(&text).starts_with("19:47:02  denied") && row(&text).ends_with('>'), "{text}");
    press(&mut model, KeyCode::Right);
    let text = shown(&mut model, 60, 12);
    assert!(row(&text).starts_with("< denied"), "{text}");
    for _ in 0..100 {
        press(&mut model, KeyCode::Right);
    }
    let text = shown(&mut model, 60, 12);
    assert!(text.contains("REASON") && !row(&text).contains('>'), "{text}");
    for _ in 0..100 {
        press(&mut model, KeyCode::Left);
    }
    assert_eq!(model.scrolled().columns, 0);
}

#[test]
fn a_small_terminal_has_what_is_most_urgent() {
    let mut model = model("node-a");
    let text = shown(&mut model, 40, 12);
    assert_eq!(text.lines().count(), 12);
    for part in [
        "node-a: ready, 1 problem",
        "[1 State] 2  3  4  5  6  7",
        "! node node-a is not reached",
        "    ping 10.0.0.2",
        "of 1",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
}

#[test]
fn the_help_names_the_keys_and_closes() {
    let mut model = model("node-a");
    press(&mut model, KeyCode::Char('?'));
    let text = shown(&mut model, 80, 24);
    for part in ["PgUp", "show only denied flows", "pause", "q, Esc, Ctrl-C", "next step below it"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(press(&mut model, KeyCode::Esc), Next::Draw, "it closes the help only");
    assert!(!model.is_help && shown(&mut model, 80, 24).contains("! node node-a"));
    press(&mut model, KeyCode::Char('?'));
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::Quit);
}

#[test]
fn no_name_moves_the_cursor_or_is_wider_than_it_is_counted() {
    let mut model = model(HOSTILE);
    model.filter = "evil".to_owned();
    assert!(frame::text(&model).lines().all(|line| !line.chars().any(char::is_control)));
    for pane in Pane::ALL {
        model.pane = pane;
        let buffer = drawn(&model, 400, 30);
        for cell in buffer.content() {
            let mut chars = cell.symbol().chars();
            assert!(
                chars.next().is_some_and(|c| matches!(c, ' '..='~')) && chars.next().is_none(),
                "{cell:?}"
            );
        }
        let all: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert!(
            all.contains("evil\\u{1b}[2J") && all.contains("\\u{202e}\\u{200d}e\\u{301}\\u{4e16}\\u{5d0}"),
            "{pane:?}: {all}"
        );
        // What a terminal gets: only its own sequences, each of which begins with this.
        let mut bytes = Vec::new();
        let mut screen = Terminal::with_options(
            CrosstermBackend::new(&mut bytes),
            ratatui::TerminalOptions { viewport: ratatui::Viewport::Fixed(buffer.area) },
        )
        .unwrap();
        screen.draw(|it| frame::draw(&model, it.buffer_mut(), true)).unwrap();
        drop(screen);
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.chars().all(|c| !c.is_control() || c == '\u{1b}') && !text.contains("\u{1b}]"),
            "{text:?}"
        );
    }
    press(&mut model, KeyCode::Char('/'));
    for c in HOSTILE.chars() {
        press(&mut model, KeyCode::Char(c));
    }
    let text = shown(&mut model, 200, 5);
    assert!(text.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{text:?}");
}

#[test]
fn every_character_that_is_not_escaped_is_one_column() {
    for c in (0..0x2_ffff).filter_map(char::from_u32) {
        let piece = Piece::plain(c.to_string());
        let columns = ratatui::text::Span::raw(piece.text()).width();
        assert_eq!(columns, piece.width(), "U+{:04X} is {:?}", u32::from(c), piece.text());
    }
    let long = Piece::plain("\u{e9}".repeat(9_000_000));
    assert!(long.width() < 500 && long.text().ends_with("..."));
}

#[test]
fn colours_are_of_the_sixteen_and_a_word_says_the_same() {
    let model = model("node-a");
    for pane in Pane::ALL {
        let mut model = Model::new(model.sample.clone(), Instant::now());
        model.pane = pane;
        let buffer = drawn(&model, 150, 30);
        for cell in buffer.content() {
            let is_base = matches!(cell.fg, Color::Reset | Color::Red | Color::Green | Color::Magenta);
            assert!(is_base && cell.bg == Color::Reset, "{cell:?}");
        }
        let mut plain = Buffer::empty(buffer.area);
        frame::draw(&model, &mut plain, false);
        assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset));
        let text =
            |buffer: &Buffer| -> String { buffer.content().iter().map(|cell| cell.symbol()).collect() };
        assert_eq!(text(&plain), text(&buffer));
    }
}

/// In debug builds a frame takes about a millisecond.
const FRAMES: usize = 300;

#[test]
fn no_size_and_no_key_end_in_a_panic() {
    let seed = 18;
    let mut random = Random::new(seed);
    let codes = [
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Backspace,
        KeyCode::F(5),
    ];
    let letters: Vec<char> = "/?dphjk 1234567evil\u{e9}".chars().collect();
    let mut models = [model("node-a"), model(HOSTILE)];
    let check = |model: &mut Model, width: u16, height: u16| {
        model.update(Event::Size(width, height), Instant::now());
        let lines = frame::frame(model, width, height);
        assert_eq!(lines.len(), usize::from(height), "seed {seed}: {width}x{height}");
        let is_wide = |line: &Line| line.width() > usize::from(width);
        assert!(!lines.iter().any(is_wide), "seed {seed}: {width}x{height}: {lines:?}");
        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(3, 2, width, height));
        frame::draw(model, &mut buffer, true);
    };
    for step in 0..FRAMES {
        let model = &mut models[step % 2];
        let code = match random.once_in(2) {
            true => codes[random.below(codes.len())],
            false => KeyCode::Char(letters[random.below(letters.len())]),
        };
        press(model, code);
        if random.once_in(20) {
            answer(model, Err(HOSTILE.to_owned()), Duration::from_secs(3));
        }
        let size = |max: usize, random: &mut Random| u16::try_from(random.below(max) + 1).unwrap();
        check(model, size(200, &mut random), size(60, &mut random));
    }
    for model in &mut models {
        for (width, height) in (0..12).flat_map(|width| (0..12).map(move |height| (width, height))) {
            check(model, width, height);
        }
    }
}

#[test]
fn once_everything_is_text_without_a_terminal() {
    let text = frame::text(&model("node-a"));
    assert!(text.starts_with("node-a: ready, 1 problem (agent node-a, up 1h1m)\n! node node-a"), "{text}");
    for part in [
        "\nNodes\nNODE ",
        "\nBlocks\n",
        "\nFlows\n",
        "\nPods\nPOD ",
        "\nOperations\n",
        "\nDrift\n",
        "shop/node-a",
        "[#####",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains('\u{1b}') && text.lines().all(|line| line.trim_end() == line), "{text}");
}

#[test]
fn what_cannot_draw_is_refused_with_what_to_use_instead() {
    let (dumb, xterm) = (Some(OsStr::new("dumb")), Some(OsStr::new("xterm-256color")));
    assert_eq!(refusal(true, xterm).or(refusal(true, None)), None);
    assert!(refusal(true, dumb).unwrap().contains("russet status --watch"));
    let reason = refusal(false, xterm).unwrap();
    assert!(reason.contains("russet top --once") && reason.contains("russet status -o json"), "{reason}");
}

#[test]
fn a_window_says_at_which_end_there_is_more() {
    let line = Line::of([Piece::new("abc", Tone::Bad), Piece::plain("defgh")]);
    for (from, width, text) in [
        (0, 8, "abcdefgh"),
        (0, 99, "abcdefgh"),
        (0, 4, "abc>"),
        (2, 4, "<de>"),
        (4, 4, "<fgh"),
        (0, 1, "a"),
        (3, 1, "<"),
        (3, 2, "<>"),
        (0, 0, ""),
        (5, 0, ""),
        (50, 4, "<"),
    ] {
        assert_eq!(line.window(from, width).text(), text, "{from} {width}");
    }
    assert_eq!(Line::default().window(8, 9).text(), "");
}

#[test]
fn lines_break_at_spaces_and_keep_every_word() {
    let line = Line::of([Piece::new("! ", Tone::Bad), Piece::plain("a node is not reached")]);
    let texts = |width, indent| line.wrapped(width, indent).iter().map(Line::text).collect::<Vec<_>>();
    assert_eq!(texts(99, 2), ["! a node is not reached"]);
    assert_eq!(texts(12, 2), ["! a node is", "  not", "  reached"]);
    for width in 1..30 {
        for indent in 0..8 {
            let lines = texts(width, indent);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width} {indent}: {lines:?}");
            let letters = |text: &str| text.replace(' ', "");
            assert_eq!(letters(&lines.concat()), letters(&line.text()), "{width} {indent}");
        }
    }
    assert_eq!(texts(0, 3), ["! a node is not reached"]);
}

#[test]
fn columns_are_as_wide_as_they_need_to_be() {
    let rows = vec![
        vec![Piece::plain("n1"), Piece::new("ready", Tone::Good)],
        vec![Piece::plain("node-2"), Piece::plain("-")],
    ];
    let (heading, lines) = Table { heading: &["NODE", "STATE"], rows }.lines();
    let texts: Vec<String> = lines.iter().map(Line::text).collect();
    assert_eq!(
        (heading.text().as_str(), texts.as_slice()),
        ("NODE    STATE", &["n1      ready".to_owned(), "node-2  -".to_owned()][..])
    );
    assert_eq!(
        lines[0].pieces().iter().find(|piece| piece.text() == "ready").map(Piece::tone),
        Some(Tone::Good)
    );
}
