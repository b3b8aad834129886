//! The page of `russet ui` as text: a line for each row, paragraph and entry of a list.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::node::{Answer, TIMEOUT, TestNode};

/// Where the page has its parts as JSON, for its script.
const REQUEST: &str = "GET /ui/sections.json HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
/// What ends a line of the text, and what stands between two cells of one.
const LINES: [&str; 6] = ["</tr>", "</li>", "</p>", "</h2>", "</dd>", "</text>"];
const CELLS: [&str; 3] = ["</td>", "</th>", "</dt>"];
/// What the page writes in the place of characters of HTML; the last one begins the others.
const ESCAPES: [(&str, &str); 5] =
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];

/// The text of the page; None if no agent serves it.
pub fn of(node: &TestNode) -> Option<Answer> {
    let mut stream = UnixStream::connect(node.path("run/russet/health.sock")).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let sections: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let sections = sections["sections"].as_array().unwrap().iter();
    let stdout = sections.map(|section| text(section["html"].as_str().unwrap())).collect();
    Some(Answer { status: 0, stdout, stderr: String::new() })
}

fn text(html: &str) -> String {
    // The source has its line ends where it is easier to read so.
    let mut html = html.replace('\n', " ");
    LINES.iter().for_each(|end| html = html.replace(end, "\n"));
    CELLS.iter().for_each(|end| html = html.replace(end, "  "));
    let mut text = String::new();
    let mut is_tag = false;
    for c in html.chars() {
        match c {
            '<' => is_tag = true,
            '>' if is_tag => is_tag = false,
            c if !is_tag => text.push(c),
            _ => {}
        }
    }
    ESCAPES.iter().for_each(|(escape, c)| text = text.replace(escape, c));
    text.lines().map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn a_row_of_the_page_is_a_line_and_its_cells_are_apart() {
    let html = "<h2 id=\"a\">A</h2>\n<ul>\n<li>x &lt;b&gt; &amp;amp;</li>\n</ul>\n<tr><td><time>1</time></td><td>two three</td></tr>\n";
    assert_eq!(text(html), "A\nx <b> &amp;\n1  two three\n\n");
}
