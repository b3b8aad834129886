//! Who has which address, as the answers of plugins tell.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lane::Alive;

/// From the answer to the ADD to the start of the DEL.
#[derive(Default)]
pub struct Owners(Mutex<BTreeMap<String, String>>);

// === impl Owners ===

impl Owners {
    /// Enters a pod; nobody else may have its addresses.
    pub fn claim(&self, alive: &Alive) {
        for address in &alive.addresses {
            let container = alive.pod.container.clone();
            let other = self.0.lock().unwrap().insert(address.clone(), container);
            assert_eq!(other, None, "{address} was given to {} as well", alive.pod.container);
        }
    }

    /// From here on the addresses may be others'.
    pub fn give_up(&self, alive: &Alive) {
        let mut owners = self.0.lock().unwrap();
        alive.addresses.iter().for_each(|address| drop(owners.remove(address)));
    }
}
