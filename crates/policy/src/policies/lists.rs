//! Lists of ranges of source ports, and the numbers that stand for them in the maps. Pure.
//!
//! Where the port of the source decides, a decision's word is the number of a list, and the map of
//! sources has the words for that number and each port. Equal lists of a family have one number, so
//! that a rule which many peers share costs a few elements. What a number stands for does not change
//! while a decision refers to it: packets under way read first the number, and then the port's word.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::Family;
use russet_nft::{Element, KeyPart};
use russet_verdict::table::SourceRange;

use super::content::{At, Decisions};
use super::skeleton::Place;
use super::words;

/// A family of addresses, and what is decided for ranges of source ports. They are in order and
/// contain every port.
pub(super) type List = (Family, Vec<SourceRange>);
/// What numbers stand for in the kernel.
pub(super) type Numbered = BTreeMap<u32, List>;

/// The lists in use.
#[derive(Debug)]
pub(super) struct Lists {
    entries: BTreeMap<List, Entry>,
    taken: BTreeSet<u32>,
    /// Ranges of all lists with numbers.
    ranges: usize,
    ranges_max: usize,
    /// Where the search for a free number begins: the last ones used are used again last.
    next: u32,
}

#[derive(Debug)]
struct Entry {
    /// `None` if there is no room for it: what refers to it is denied.
    number: Option<u32>,
    /// Decisions that refer to it.
    users: usize,
}

/// Ranges of all lists. The kernel copies the whole map when one of them changes, which takes 40 ms
/// with so many (policy.md section 3.1).
const RANGES_MAX: usize = 10_000;

// === impl Lists ===

impl Lists {
    /// The lists of all decisions. Those that the kernel knows keep their numbers, and no other list
    /// gets one of these.
    pub fn of(content: &Decisions, known: &Numbered) -> Self {
        let mut lists = Self { taken: known.keys().copied().collect(), ..Self::default() };
        let numbers: BTreeMap<&List, u32> = known.iter().map(|(number, list)| (list, *number)).collect();
        for list in content.lists() {
            lists.acquire_as(&list, numbers.get(&list).copied());
        }
        lists.next = lists.taken.last().map_or(words::LISTS, |last| *last);
        lists
    }

    /// Counts a decision that refers to a list. Returns the number if it is a new one.
    pub fn acquire(&mut self, list: &List) -> Option<u32> {
        self.acquire_as(list, None)
    }

    fn acquire_as(&mut self, list: &List, known: Option<u32>) -> Option<u32> {
        if let Some(entry) = self.entries.get_mut(list) {
            entry.users += 1;
            return None;
        }
        let has_room = self.ranges + list.1.len() <= self.ranges_max;
        let number = known.or_else(|| self.free_number()).filter(|_| has_room);
        if let Some(number) = number {
            self.ranges += list.1.len();
            self.taken.insert(number);
        }
        self.entries.insert(list.clone(), Entry { number, users: 1 });
        number
    }

    /// Takes that back. Returns the number if nothing refers to it any more.
    pub fn release(&mut self, list: &List) -> Option<u32> {
        let entry = self.entries.get_mut(list)?;
        entry.users -= 1;
        if entry.users > 0 {
            return None;
        }
        let number = self.entries.remove(list)?.number?;
        self.taken.remove(&number);
        self.ranges -= list.1.len();
        Some(number)
    }

    fn free_number(&mut self) -> Option<u32> {
        let is_free = |number: &u32| !self.taken.contains(number);
        let free = (self.next..=u32::MAX).chain(words::LISTS..self.next).find(is_free);
        self.next = free.and_then(|number| number.checked_add(1)).unwrap_or(words::LISTS);
        free
    }

    /// What stands for a list in a map of decisions.
    pub fn number(&self, list: &List) -> u32 {
        let known = self.entries.get(list).and_then(|entry| entry.number);
        known.unwrap_or_else(|| words::number(words::WIDE))
    }

    /// The elements of all lists.
    pub fn elements(&self) -> impl Iterator<Item = (At, Element)> {
        let numbered = self.entries.iter().filter_map(|(list, entry)| Some((list, entry.number?)));
        numbered.flat_map(|(list, number)| elements(number, list))
    }

    /// Decisions that are denied because there is no room for their lists.
    pub fn denied(&self) -> usize {
        self.entries.values().filter(|entry| entry.number.is_none()).map(|entry| entry.users).sum()
    }
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            taken: BTreeSet::new(),
            ranges: 0,
            ranges_max: RANGES_MAX,
            next: words::LISTS,
        }
    }
}

/// The elements of a list.
pub(super) fn elements(number: u32, (family, ranges): &List) -> impl Iterator<Item = (At, Element)> {
    ranges.iter().map(move |range| {
        let key = [KeyPart::class_id(number), KeyPart::ports(range.first..=range.last)];
        let word = KeyPart::class_id(words::number(range.word));
        ((Place::Sources, *family), Element::concatenation(key).data(word))
    })
}

/// The lists that elements of the kernel make; those that do not say something for every port are
/// left out.
pub(super) fn read(found: &BTreeMap<At, Vec<Element>>) -> Numbered {
    let mut lists: BTreeMap<(u32, Family), Vec<SourceRange>> = BTreeMap::new();
    for ((place, family), elements) in found {
        if *place != Place::Sources {
            continue;
        }
        for (number, range) in elements.iter().filter_map(range) {
            lists.entry((number, *family)).or_default().push(range);
        }
    }
    let mut numbered = Numbered::new();
    for ((number, family), mut ranges) in lists {
        ranges.sort_unstable();
        if is_complete(&ranges) {
            numbered.insert(number, (family, ranges));
        }
    }
    numbered
}

fn range(element: &Element) -> Option<(u32, SourceRange)> {
    let number = words::class_id(element.key.first()?)?;
    let (first, last) = element.key.get(1)?.bytes();
    let port = |bytes: &[u8]| Some(u16::from_be_bytes(bytes.try_into().ok()?));
    let word = words::word(element.value.as_ref())?;
    Some((number, SourceRange { first: port(first)?, last: port(last)?, word }))
}

/// Whether ranges contain every port once.
fn is_complete(ranges: &[SourceRange]) -> bool {
    let mut next = Some(0);
    for range in ranges {
        if Some(range.first) != next || range.last < range.first {
            return false;
        }
        next = range.last.checked_add(1);
    }
    next.is_none()
}

#[cfg(test)]
mod tests {
    use russet_verdict::table::Word;

    use super::*;

    fn list(cut: u16) -> List {
        let range = |first, last, word| SourceRange { first, last, word };
        let ranges = vec![range(0, cut - 1, Word::DENY), range(cut, u16::MAX, Word::ALLOW)];
        (Family::V4, ranges)
    }

    fn by_place(elements: impl Iterator<Item = (At, Element)>) -> BTreeMap<At, Vec<Element>> {
        let mut found: BTreeMap<At, Vec<Element>> = BTreeMap::new();
        elements.for_each(|(at, element)| found.entry(at).or_default().push(element));
        found
    }

    #[test]
    fn equal_lists_have_one_number_until_nothing_refers_to_them() {
        let mut lists = Lists::default();
        let first = lists.acquire(&list(10)).unwrap();
        assert_eq!(lists.acquire(&list(10)), None);
        let second = lists.acquire(&list(20)).unwrap();
        let other_family = (Family::V6, list(10).1);
        let third = lists.acquire(&other_family).unwrap();
        assert_eq!(BTreeSet::from([first, second, third]).len(), 3);
        assert_eq!([lists.number(&list(10)), lists.number(&other_family)], [first, third]);
        assert_eq!([lists.release(&list(10)), lists.release(&list(10))], [None, Some(first)]);
        // Not the number that packets under way may have read.
        assert!(lists.acquire(&list(30)).is_some_and(|number| number != first));
        assert_eq!(lists.elements().count(), 6);
    }

    #[test]
    fn elements_are_read_back_and_incomplete_lists_are_left_out() {
        let mut lists = Lists::default();
        let number = lists.acquire(&list(10)).unwrap();
        lists.acquire(&(Family::V6, list(5).1));
        let mut found = by_place(lists.elements());
        let known = read(&found);
        assert_eq!(known.len(), 2);
        assert_eq!(known[&number], list(10));
        found.get_mut(&(Place::Sources, Family::V4)).unwrap().pop();
        assert_eq!(read(&found).len(), 1);
    }

    #[test]
    fn what_there_is_no_room_for_is_denied_until_all_lists_are_counted_anew() {
        let mut lists = Lists { ranges_max: 4, ..Lists::default() };
        for cut in [10, 20, 30, 30] {
            lists.acquire(&list(cut));
        }
        assert_eq!((lists.number(&list(30)), lists.denied()), (words::number(words::WIDE), 2));
        assert!(lists.release(&list(10)).is_some());
        assert_eq!(lists.acquire(&list(30)), None);
        assert_eq!((lists.number(&list(30)), lists.denied()), (words::number(words::WIDE), 3));
        assert_eq!([lists.release(&list(30)), lists.release(&list(30)), lists.release(&list(30))], [None; 3]);
        assert!(lists.acquire(&list(30)).is_some());
        assert_eq!(lists.denied(), 0);
    }

    #[test]
    fn numbers_begin_again_at_the_first_free_one() {
        let mut lists = Lists::default();
        let first = lists.acquire(&list(10)).unwrap();
        lists.next = u32::MAX;
        assert_eq!(lists.acquire(&list(20)), Some(u32::MAX));
        assert_eq!(lists.acquire(&list(30)), Some(first + 1));
    }
}
