//! The owner of each address, by the plugins' answers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::worker::Alive;

/// Owners from the answer to the ADD to the start of the DEL.
#[derive(Default)]
pub struct Owners(Mutex<BTreeMap<String, String>>);

// === impl Owners ===

impl Owners {
    /// Records a pod; no other pod may have its addresses.
    pub fn claim(&self, alive: &Alive) {
        for address in &alive.addresses {
            let container = alive.pod.container.clone();
            let other = self.0.lock().unwrap().insert(address.clone(), container);
            assert_eq!(other, None, "{address} was given to {} as well", alive.pod.container);
        }
    }

    /// From here on others may have the addresses.
    pub fn give_up(&self, alive: &Alive) {
        let mut owners = self.0.lock().unwrap();
        alive.addresses.iter().for_each(|address| drop(owners.remove(address)));
    }
}
