package console

import (
	"errors"
	"strings"
	"sync"
)

// questionsAtOnce is how many questions to the doctor a party may have at once. They are answered one after the other.
const questionsAtOnce = 4

// party is whom a viewer counts as where one could keep others out: a tenant has as many service accounts as it wishes in its namespace.
func party(user string) string {
	const accounts = "system:serviceaccount:"
	if account, is := strings.CutPrefix(user, accounts); is {
		namespace, _, _ := strings.Cut(account, ":")
		return accounts + namespace
	}
	return user
}

// seats is how many sessions a party has. Call it with the lock.
func (s *sessions) seats(of string) (count int) {
	for _, other := range s.all {
		if other.ctx.Err() == nil && party(other.about.User) == of {
			count++
		}
	}
	return count
}

var errAsks = errors.New("you ask the doctor several questions already; ask again once these are answered")

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
