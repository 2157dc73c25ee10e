package console

import (
	"errors"
	"strings"
	"sync"
)

// questionsAtOnce is how many questions to the doctor a party may have at once. They are answered one after the other.
const questionsAtOnce = 4

// party is the identity that limits count for a viewer: a tenant has as many service accounts as it wishes in its namespace.
func party(user string) string {
	const accounts = "system:serviceaccount:"
	if account, is := strings.CutPrefix(user, accounts); is {
		namespace, _, _ := strings.Cut(account, ":")
		return accounts + namespace
	}
	return user
}

var errPushed = errors.New("too many requests of your accounts: other viewers wait")

// makePlace ends a session of the party that has most, where that leaves it no less than the newcomer gets. Call it with the lock.
func (s *sessions) makePlace(newcomer string) bool {
	seats, greatest := map[string]int{}, newcomer
	for _, other := range s.all {
		of := party(other.about.User)
		seats[of]++
		if seats[of] > seats[greatest] {
			greatest = of
		}
	}
	if seats[greatest] < seats[newcomer]+2 {
		return false
	}
	for key, other := range s.all {
		if party(other.about.User) == greatest {
			delete(s.all, key)
			other.end(errPushed)
			return true
		}
	}
	return false
}

var errAsks = errors.New("several of your requests to the doctor are in progress; try again once these are answered")

// questions counts each party's questions that wait for an answer.
type questions struct {
	mu  sync.Mutex
	all map[string]int
}

// begin counts a question, unless the party has too many. Call end when it is answered.
func (q *questions) begin(user string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := party(user)
	if q.all[of] >= questionsAtOnce {
		return errAsks
	}
	if q.all == nil {
		q.all = map[string]int{}
	}
	q.all[of]++
	return nil
}

func (q *questions) end(user string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := party(user)
	if q.all[of]--; q.all[of] == 0 {
		delete(q.all, of)
	}
}
