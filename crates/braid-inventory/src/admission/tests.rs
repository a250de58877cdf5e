//! Tests of the admission of controllers.

use super::*;
use braid_export::admission::AdmissionState;
use std::sync::atomic::{AtomicU32, Ordering};

const BOOT: Uuid = Uuid::from_u128(100);
const FIRST: Uuid = Uuid::from_u128(1);
const SECOND: Uuid = Uuid::from_u128(2);
const LIMIT: Duration = Duration::from_secs(10);

type Writes = mpsc::UnboundedReceiver<Register>;

/// Returns an admission, the registers that it writes, and a counter of its notifications to the shards.
fn admission() -> (Arc<ReplicaAdmission>, Writes, Arc<AtomicU32>) {
    let notifications = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&notifications);
    let notify = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let (admission, writes) = ReplicaAdmission::new(Register::default(), BOOT, notify);
    (admission, writes, notifications)
}

/// Sends a request, and makes the register durable.
async fn request(admission: &Arc<ReplicaAdmission>, writes: &mut Writes, ask: VoterRequest) -> Option<RequestOutcome> {
    let queued = tokio::spawn({
        let admission = Arc::clone(admission);
        async move { admission.request(ask, LIMIT).await }
    });
    while !queued.is_finished() {
        tokio::task::yield_now().await;
        if writes.try_recv().is_ok() {
            admission.written(true);
        }
    }
    queued.await.expect("the task is not aborted")
}

fn admit(
    admission: &ReplicaAdmission,
    epoch: u64,
    controller: Uuid,
    session: u64,
    attempt: u64,
) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
    admission.pass_for(&format!(
        "epoch={epoch}&controller={controller}&boot={BOOT}&session={session}&connection=0&attempt={attempt}"
    ))
}

impl ReplicaAdmission {
    fn pass_for(&self, terms: &str) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
        Admission::request(self, terms)
    }
}

#[tokio::test]
async fn a_raise_completes_once_no_older_connection_is_left() {
    let (admission, mut writes, notifications) = admission();
    assert!(admit(&admission, 1, FIRST, 1, 1).is_err(), "no controller has this epoch");
    let raised = request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    assert!(matches!(raised, Some(Ok(VoterReply::Raised { .. }))), "{raised:?}");
    let pass = admit(&admission, 1, FIRST, 1, 1).expect("it is its turn");
    assert_eq!((pass.state(), admission.connections()), (AdmissionState::Admitted, 1));
    let late = Arc::clone(&pass);

    let raising = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.request(VoterRequest::Raise { epoch: 2, controller: SECOND }, LIMIT).await }
    });
    while pass.state() != AdmissionState::Cut {
        tokio::task::yield_now().await;
    }
    assert_eq!(notifications.load(Ordering::Relaxed), 1);
    // The connection is closed; the kernel still has an I/O of it in flight.
    drop(pass);
    tokio::task::yield_now().await;
    assert!(writes.try_recv().is_err(), "something of the older epoch is under way");
    drop(late);
    let written = writes.recv().await.expect("it is to be written");
    assert_eq!((written.epoch, raising.is_finished(), admission.connections()), (2, false, 0));
    admission.written(true);
    assert!(matches!(raising.await.expect("it ends"), Some(Ok(VoterReply::Raised { .. }))));
}

#[tokio::test]
async fn a_raise_waits_for_an_operation_in_flight() {
    let (admission, mut writes, _) = admission();
    request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    assert!(admission.begin(1, FIRST, 1).is_none(), "no session was admitted yet");
    let pass = admit(&admission, 1, FIRST, 2, 1).expect("it is its turn");
    for (epoch, controller, session) in [(1, SECOND, 2), (2, FIRST, 2), (1, FIRST, 1), (1, FIRST, 3)] {
        assert!(admission.begin(epoch, controller, session).is_none(), "{epoch} {session}");
    }
    let operation = admission.begin(1, FIRST, 2).expect("it is this session's");
    // A later session is not admitted before the end of the operation either.
    let later = admit(&admission, 1, FIRST, 3, 1).expect("it may wait");
    drop(pass);
    assert_eq!(later.state(), AdmissionState::Waits);
    let raising = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.request(VoterRequest::Raise { epoch: 2, controller: SECOND }, LIMIT).await }
    });
    while later.state() != AdmissionState::Cut {
        tokio::task::yield_now().await;
    }
    drop(later);
    tokio::task::yield_now().await;
    assert!(writes.try_recv().is_err(), "it goes on still");
    assert!(admission.begin(1, FIRST, 3).is_none(), "nothing begins while another one comes");
    drop(operation);
    assert_eq!(writes.recv().await.map(|register| register.epoch), Some(2));
    admission.written(true);
    assert!(matches!(raising.await.expect("it ends"), Some(Ok(VoterReply::Raised { .. }))));
    admission.close();
    assert!(admission.begin(2, SECOND, 1).is_none());
}

#[tokio::test]
async fn a_later_attempt_is_admitted_at_the_end_of_the_earlier_one() {
    let (admission, mut writes, notifications) = admission();
    request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    let first = admit(&admission, 1, FIRST, 1, 1).expect("the first one");
    let second = admit(&admission, 1, FIRST, 1, 2).expect("it may wait");
    assert_eq!((first.state(), second.state()), (AdmissionState::Cut, AdmissionState::Waits));
    assert!(matches!(admit(&admission, 1, FIRST, 1, 2), Err(AdmissionDenied::Permanently(_))));
    // An attempt that is given up while it waits delays no other one.
    let third = admit(&admission, 1, FIRST, 1, 3).expect("it may wait");
    assert_eq!(second.state(), AdmissionState::Cut);
    drop(second);
    let before = notifications.load(Ordering::Relaxed);
    drop(first);
    assert_eq!((third.state(), notifications.load(Ordering::Relaxed)), (AdmissionState::Admitted, before + 1));
    drop(third);
    assert_eq!(admission.connections(), 0);
}

#[tokio::test]
async fn a_voter_that_cannot_write_or_is_closed_does_not_reply() {
    let (admission, mut writes, _) = admission();
    request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    let pass = admit(&admission, 1, FIRST, 1, 1).expect("the first one");
    let queued = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.request(VoterRequest::Release { epoch: 1, controller: FIRST }, LIMIT).await }
    });
    writes.recv().await.expect("it is to be written");
    admission.written(false);
    assert_eq!(queued.await.expect("it ends"), None);
    assert_eq!(pass.state(), AdmissionState::Cut);
    assert_eq!(admission.request(VoterRequest::Heartbeat { epoch: 1, controller: FIRST }, LIMIT).await, None);
    assert!(admit(&admission, 1, FIRST, 2, 1).is_err());

    let (admission, mut writes, notifications) = self::admission();
    request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    let pass = admit(&admission, 1, FIRST, 1, 1).expect("the first one");
    admission.close();
    assert_eq!((pass.state(), notifications.load(Ordering::Relaxed)), (AdmissionState::Cut, 1));
    assert!(
        matches!(admit(&admission, 1, FIRST, 2, 1), Err(AdmissionDenied::Temporarily(_))),
        "it may be opened again"
    );
    assert!(writes.recv().await.is_none(), "the writer ends");
    assert_eq!(admission.request(VoterRequest::Heartbeat { epoch: 1, controller: FIRST }, LIMIT).await, None);
    drop(pass);
    assert_eq!(admission.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_request_is_not_begun() {
    let (admission, mut writes, _) = admission();
    request(&admission, &mut writes, VoterRequest::Raise { epoch: 1, controller: FIRST }).await;
    let pass = admit(&admission, 1, FIRST, 1, 1).expect("the first one");
    // Its connection is cut off; the sender waits no longer than this for the end of its I/O.
    assert_eq!(admission.request(VoterRequest::Raise { epoch: 2, controller: SECOND }, LIMIT).await, None);
    assert!(admit(&admission, 1, FIRST, 1, 2).is_err(), "the request may be sent again at once");
    tokio::time::sleep(RETAIN_MAX + Duration::from_millis(1)).await;
    drop(pass);
    tokio::task::yield_now().await;
    assert!(writes.try_recv().is_err(), "the epoch was not raised");
    admit(&admission, 1, FIRST, 1, 2).expect("it goes on");
    // The sender goes away.
    let pass = admit(&admission, 1, FIRST, 1, 3).expect("a later attempt");
    let queued = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.request(VoterRequest::Raise { epoch: 3, controller: SECOND }, LIMIT).await }
    });
    while pass.state() != AdmissionState::Cut {
        tokio::task::yield_now().await;
    }
    queued.abort();
    tokio::time::sleep(LIMIT + RETAIN_MAX + Duration::from_millis(1)).await;
    drop(pass);
    tokio::task::yield_now().await;
    assert!(writes.try_recv().is_err(), "the epoch was not raised");
    let raised = request(&admission, &mut writes, VoterRequest::Raise { epoch: 4, controller: SECOND }).await;
    assert!(matches!(raised, Some(Ok(VoterReply::Raised { .. }))), "{raised:?}");
}
