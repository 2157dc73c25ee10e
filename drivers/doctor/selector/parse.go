package selector

import (
	"strconv"
)

// node is a part of an expression.
type node interface{ value(*subject) any }

// maxDepth bounds the nesting of an expression, which tenants write.
const maxDepth = 64

// parser is a recursive descent parser. bad is the first thing that it cannot parse.
type parser struct {
	tokens []token
	at     int
	bad    string
}

func (p *parser) fail(why string) node {
	if p.bad == "" {
		p.bad = why
	}
	return literal{unknown(why)}
}

// take consumes an operator if it comes next.
func (p *parser) take(operators ...string) string {
	if p.at < len(p.tokens) && p.tokens[p.at].kind == 'o' {
		for _, o := range operators {
			if p.tokens[p.at].text == o {
				p.at++
				return o
			}
		}
	}
	return ""
}

func (p *parser) expect(operator string) {
	if p.take(operator) == "" {
		p.fail(operator + " is missing")
	}
}

func (p *parser) either(depth int) node {
	if depth > maxDepth {
		return p.fail("more parentheses than are read")
	}
	left := p.both(depth + 1)
	for p.bad == "" && p.take("||") != "" {
		left = junction{left, p.both(depth + 1), true}
	}
	return left
}

func (p *parser) both(depth int) node {
	left := p.comparison(depth + 1)
	for p.bad == "" && p.take("&&") != "" {
		left = junction{left, p.comparison(depth + 1), false}
	}
	return left
}

func (p *parser) comparison(depth int) node {
	left := p.unary(depth + 1)
	if o := p.take("==", "!=", "<=", ">=", "<", ">"); o != "" {
		return comparison{left, p.unary(depth + 1), o}
	}
	if p.at < len(p.tokens) && p.tokens[p.at] == (token{'i', "in"}) {
		p.at++
		return membership{left, p.unary(depth + 1)}
	}
	return left
}

func (p *parser) unary(depth int) node {
	if depth > maxDepth {
		return p.fail("more parentheses than are read")
	}
	if p.take("!") != "" {
		return negation{p.unary(depth + 1)}
	}
	if p.take("-") != "" {
		if n, ok := p.unary(depth + 1).(literal); ok {
			if i, ok := n.v.(int64); ok {
				return literal{-i}
			}
		}
		return p.fail("a minus before something else than a number")
	}
	return p.postfix(depth)
}

func (p *parser) postfix(depth int) node {
	n := p.primary(depth)
	for p.bad == "" {
		switch {
		case p.take(".") != "":
			if p.at == len(p.tokens) || p.tokens[p.at].kind != 'i' {
				return p.fail("a name is missing behind a dot")
			}
			name := p.tokens[p.at].text
			p.at++
			if p.take("(") != "" {
				n = call{n, name, p.list(")", depth)}
			} else {
				n = member{n, literal{name}}
			}
		case p.take("[") != "":
			n = member{n, p.either(depth + 1)}
			p.expect("]")
		default:
			return n
		}
	}
	return n
}

// list reads expressions up to the closing operator.
func (p *parser) list(closing string, depth int) []node {
	var out []node
	for p.bad == "" && p.take(closing) == "" {
		if len(out) > 0 {
			p.expect(",")
		}
		out = append(out, p.either(depth+1))
	}
	return out
}

func (p *parser) primary(depth int) node {
	if p.at == len(p.tokens) {
		return p.fail("the expression ends")
	}
	if p.take("(") != "" {
		n := p.either(depth + 1)
		p.expect(")")
		return n
	}
	if p.take("[") != "" {
		return array(p.list("]", depth))
	}
	t := p.tokens[p.at]
	p.at++
	switch t.kind {
	case 's':
		return literal{t.text}
	case 'n':
		i, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return p.fail("the number " + t.text)
		}
		return literal{i}
	case 'i':
		switch {
		case t.text == "true" || t.text == "false":
			return literal{t.text == "true"}
		case t.text == "device":
			return whole{}
		case p.take("(") != "":
			return call{nil, t.text, p.list(")", depth)}
		}
	}
	return p.fail(t.text)
}
