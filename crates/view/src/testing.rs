//! A reader of XML for tests: that a text is well-formed, and its elements.

/// A start tag: the element's name, and its attributes in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
}

impl Element {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// The elements of a document and its text. Panics if it is not well-formed, with the place. Elements of `void` have no end tag (HTML).
#[track_caller]
pub fn read(document: &str, void: &[&str]) -> (Vec<Element>, String) {
    let (mut elements, mut open, mut text): (Vec<Element>, Vec<String>, String) = Default::default();
    assert!(!document.chars().any(|c| c.is_control() && c != '\n'), "a control character");
    let mut rest = document;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(&unescaped(before));
        if let Some(declaration) = after.strip_prefix('!') {
            rest = declaration.split_once('>').unwrap().1;
            continue;
        }
        let end = tag_end(after);
        let (tag, after) = (&after[..end], &after[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "an end tag, before {after:.80}");
            continue;
        }
        let is_empty = tag.ends_with('/');
        let element = element(tag.trim_end_matches('/'));
        if !is_empty && !void.contains(&element.name.as_str()) {
            // Its content is no markup.
            if element.name == "style" {
                rest = after.split_once("</style>").unwrap().1;
            } else {
                open.push(element.name.clone());
            }
        }
        elements.push(element);
    }
    text.push_str(&unescaped(rest));
    assert!(open.is_empty(), "not closed: {open:?}");
    (elements, text)
}

/// Where a tag ends: the first `>` outside of quotation marks.
#[track_caller]
fn tag_end(tag: &str) -> usize {
    let mut quoted = false;
    for (at, c) in tag.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '>' if !quoted => return at,
            '<' => panic!("`<` in a tag: {tag:.80}"),
            _ => {}
        }
    }
    panic!("a tag without an end: {tag:.80}")
}

#[track_caller]
fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once([' ', '\n']).unwrap_or((tag, ""));
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "a name: {name:?}");
    let mut attributes = Vec::new();
    while !rest.trim().is_empty() {
        let (name, after) =
            rest.split_once("=\"").unwrap_or_else(|| panic!("an attribute: {rest:?} of {tag:.80}"));
        let (value, after) = after.split_once('"').unwrap();
        let name = name.trim().to_owned();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "a name: {name:?}");
        assert!(attributes.iter().all(|(other, _)| *other != name), "twice: {name}");
        attributes.push((name, unescaped(value)));
        rest = after;
    }
    Element { name: name.to_owned(), attributes }
}

#[track_caller]
fn unescaped(text: &str) -> String {
    let mut parts = text.split('&');
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (entity, after) = part.split_once(';').unwrap_or_else(|| panic!("a bare ampersand: {part:.80}"));
        let entities = [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("#39", '\'')];
        let entity = entities.iter().find(|(name, _)| *name == entity);
        found.push(entity.unwrap_or_else(|| panic!("an entity: {part:.80}")).1);
        found.push_str(after);
    }
    found
}

#[test]
#[should_panic(expected = "an end tag")]
fn what_is_not_well_formed_is_refused() {
    read("<a><b></a></b>", &[]);
}
