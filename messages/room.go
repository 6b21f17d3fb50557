package messages

import "fmt"

// NewRoom is a room message around one of its bodies.
func NewRoom(id RoomID, from, to Engine, body any) *Room {
	r := &Room{Room: id.Room, Attempt: id.Attempt, From: from.Ref(), To: to.Ref()}
	switch b := body.(type) {
	case *Grant:
		r.Body = &Room_Grant{b}
	case *GrantAck:
		r.Body = &Room_GrantAck{b}
	case *Known:
		r.Body = &Room_Known{b}
	case *KnownAck:
		r.Body = &Room_KnownAck{b}
	case *Excused:
		r.Body = &Room_Excused{b}
	case *ExcusedAck:
		r.Body = &Room_ExcusedAck{b}
	case *Declined:
		r.Body = &Room_Declined{b}
	case *DeclinedAck:
		r.Body = &Room_DeclinedAck{b}
	case *Done:
		r.Body = &Room_Done{b}
	case *Missing:
		r.Body = &Room_Missing{b}
	case *MissingAck:
		r.Body = &Room_MissingAck{b}
	case *Landed:
		r.Body = &Room_Landed{b}
	case *LandedAck:
		r.Body = &Room_LandedAck{b}
	case *Failed:
		r.Body = &Room_Failed{b}
	case *FailedAck:
		r.Body = &Room_FailedAck{b}
	case *Outcome:
		r.Body = &Room_Outcome{b}
	case *OutcomeAck:
		r.Body = &Room_OutcomeAck{b}
	case *Quiet:
		r.Body = &Room_Quiet{b}
	case *QuietAck:
		r.Body = &Room_QuietAck{b}
	case *Answer:
		r.Body = &Room_Answer{b}
	case *Inquire:
		r.Body = &Room_Inquire{b}
	case *Inquired:
		r.Body = &Room_Inquired{b}
	default:
		panic(fmt.Sprintf("messages: %T is no body of a room message", body))
	}
	return r
}

// Unwrap is the body, nil when there is none or it is of a later version.
func (r *Room) Unwrap() any {
	switch b := r.GetBody().(type) {
	case *Room_Grant:
		return b.Grant
	case *Room_GrantAck:
		return b.GrantAck
	case *Room_Known:
		return b.Known
	case *Room_KnownAck:
		return b.KnownAck
	case *Room_Excused:
		return b.Excused
	case *Room_ExcusedAck:
		return b.ExcusedAck
	case *Room_Declined:
		return b.Declined
	case *Room_DeclinedAck:
		return b.DeclinedAck
	case *Room_Done:
		return b.Done
	case *Room_Missing:
		return b.Missing
	case *Room_MissingAck:
		return b.MissingAck
	case *Room_Landed:
		return b.Landed
	case *Room_LandedAck:
		return b.LandedAck
	case *Room_Failed:
		return b.Failed
	case *Room_FailedAck:
		return b.FailedAck
	case *Room_Outcome:
		return b.Outcome
	case *Room_OutcomeAck:
		return b.OutcomeAck
	case *Room_Quiet:
		return b.Quiet
	case *Room_QuietAck:
		return b.QuietAck
	case *Room_Answer:
		return b.Answer
	case *Room_Inquire:
		return b.Inquire
	case *Room_Inquired:
		return b.Inquired
	}
	return nil
}

// ID is the room and attempt of the message.
func (r *Room) ID() RoomID { return RoomID{r.GetRoom(), r.GetAttempt()} }
