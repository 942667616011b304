package openapi

// What the tests of this package see beside what it exports: they stand outside of
// it, since the operations come from the door.
var (
	Codes        = codes
	CodesOf      = codesOf
	EveryCodes   = everyCodes
	CodeList     = codeList
	SchemaName   = schemaName
	Descriptions = descriptions
	ExamplesFile = examplesFile
	Examples     = examples
)

func (c code) Statuses() []int { return c.statuses }
func (c code) Text() string    { return c.text }

func (op *Operation) Problems() []int                { return op.problems() }
func (op *Operation) ProblemCodes() map[int][]string { return op.problemCodes() }
func (op *Operation) PathNames() []string            { return op.pathNames() }
